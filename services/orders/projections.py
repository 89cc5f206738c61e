"""How an order's row among the open ones begins, changes and ends."""

from typing import Any, assert_never, get_args

from services.orders.domain.events import (
    ChargeOverdue,
    LineReserved,
    OrderCancelled,
    OrderConfirmed,
    OrderEvent,
    OrderPlaced,
    OrderRejected,
    ReservationOverdue,
)
from services.orders.domain.views import Open
from services.orders.topology import OPEN
from shared.domain import EventEnvelope
from shared.topology import Projection


def still_open(view: Open | None, event: EventEnvelope[OrderEvent], _order_id: str) -> Open | None:
    """None, as at first, ends the row."""
    match data := event.data:
        case OrderPlaced():
            return Open(customer_id=data.customer_id, waits_for="stock", since=event.occurred_at)
        case LineReserved(asked=()):
            return Open(customer_id=data.customer_id, waits_for="payment", since=event.occurred_at)
        case LineReserved() | ReservationOverdue() | ChargeOverdue():
            return view
        case OrderConfirmed() | OrderRejected() | OrderCancelled():
            return None
        case _:
            assert_never(data)


PROJECTIONS: tuple[Projection[Any, Any], ...] = (
    Projection(OPEN, still_open, initial=None, events=get_args(OrderEvent), state=Open),
)
