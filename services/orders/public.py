"""What orders tells other teams, on `orders.public.v1`, however its own events change."""

from services.orders.domain import events
from services.orders.topology import EVENTS, PUBLIC
from shared.domain import Event, EventEnvelope, Instant
from shared.topology import Publication


class OrderConfirmed(Event):
    """The goods are on their way, and the customer owes their price, in int cents."""

    TYPE = "order.confirmed"

    customer_id: str
    skus: tuple[str, ...]
    total_cents: int
    placed_at: Instant


def publish(event: EventEnvelope[events.OrderConfirmed]) -> OrderConfirmed:
    confirmed = event.data
    return OrderConfirmed(
        customer_id=confirmed.customer_id,
        skus=tuple(line.sku for line in confirmed.lines),
        total_cents=sum(line.amount_cents for line in confirmed.lines),
        placed_at=confirmed.placed_at,
    )


PUBLICATIONS = (
    Publication(publish, source=EVENTS, events=[events.OrderConfirmed], topic=PUBLIC, public=[OrderConfirmed]),
)
