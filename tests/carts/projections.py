"""Carts that wait to be checked out. The view of a key without a row is None."""

from typing import Any

from shared.domain import EventEnvelope, State
from shared.topology import Projection
from tests.carts.domain import CheckedOut, ItemAdded
from tests.carts.topology import WAITING


class Waiting(State):
    items: int


def waiting(view: Waiting | None, event: EventEnvelope[ItemAdded | CheckedOut], _cart: str) -> Waiting | None:
    match event.data:
        case ItemAdded():
            return Waiting(items=1 + (view.items if view else 0))
        case CheckedOut():
            return None


PROJECTIONS: tuple[Projection[Any, Any], ...] = (
    Projection(WAITING, waiting, initial=None, events=(ItemAdded, CheckedOut), state=Waiting),
)
