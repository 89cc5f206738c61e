"""Windows over event time: when a customer ordered, not when the order was reported or processed."""

from datetime import UTC, datetime, time, timedelta

from services.sales.contracts.orders import OrderConfirmed
from shared.domain import EventEnvelope

GRACE = timedelta(days=3)

_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_A_DAY = timedelta(days=1)


def day_of(event: OrderConfirmed) -> str:
    """`1997-01-18`, UTC."""
    return event.placed_at.date().isoformat()


def hour_of_week(event: OrderConfirmed) -> str:
    """`sat-09`: one of 168, UTC."""
    return f"{_WEEKDAYS[event.placed_at.weekday()]}-{event.placed_at.hour:02d}"


def is_late(envelope: EventEnvelope[OrderConfirmed]) -> bool:
    """Whether the order was reported more than GRACE after its day had ended.

    Both times are the event's own, so a replay, or the same events in another order, gives the same result.
    """
    day = datetime.combine(envelope.data.placed_at.date(), time(), UTC)
    return envelope.occurred_at - day > _A_DAY + GRACE  # not a sum, which can lie beyond the year 9999
