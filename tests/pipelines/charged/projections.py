"""How a charge changes the totals of its item."""

from typing import Any

from services.accounts.domain.events import AccountCharged
from services.accounts.domain.upcasters import UPCASTERS
from shared.domain import EventEnvelope, State
from shared.topology import Projection
from tests.pipelines.charged.topology import TOTALS


class Totals(State):
    charges: int = 0
    cents: int = 0


def totals(view: Totals, event: EventEnvelope[AccountCharged], _item: str) -> Totals:
    return Totals(charges=view.charges + 1, cents=view.cents + event.data.amount_cents)


PROJECTIONS: tuple[Projection[Any, Any], ...] = (
    Projection(TOTALS, totals, initial=Totals(), events=(AccountCharged,), state=Totals, upcasters=UPCASTERS),
)
