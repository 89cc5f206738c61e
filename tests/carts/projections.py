"""Carts that wait to be checked out, and those in which something is fresh. The view of a key without a row is None."""

from datetime import timedelta
from typing import Any

from shared.domain import EventEnvelope, Instant, State
from shared.topology import Projection
from tests.carts.domain import CheckedOut, ItemAdded
from tests.carts.topology import FRESH, WAITING


class Waiting(State):
    items: int


def waiting(view: Waiting | None, event: EventEnvelope[ItemAdded | CheckedOut], _cart: str) -> Waiting | None:
    match event.data:
        case ItemAdded():
            return Waiting(items=1 + (view.items if view else 0))
        case CheckedOut():
            return None


MELTS, KEEPS = timedelta(seconds=1), timedelta(hours=1)


class Fresh(State):
    items: int
    until: Instant


def fresh(view: Fresh | None, event: EventEnvelope[ItemAdded], _cart: str) -> Fresh:
    until = event.occurred_at + (MELTS if event.data.item == "ice" else KEEPS)
    return Fresh(items=1 + (view.items if view else 0), until=max(until, view.until) if view else until)


PROJECTIONS: tuple[Projection[Any, Any], ...] = (
    Projection(WAITING, waiting, initial=None, events=(ItemAdded, CheckedOut), state=Waiting),
    Projection(FRESH, fresh, initial=None, events=(ItemAdded,), state=Fresh),
)
