"""Orders as sales sees it: a confirmed order, and the sums that sales takes from it."""

from shared.domain import Event, Instant, Part


class Line(Part):
    sku: str
    quantity: int
    amount_cents: int


class OrderConfirmed(Event):
    TYPE = "order.confirmed"

    customer_id: str
    lines: tuple[Line, ...]
    placed_at: Instant

    @property
    def units(self) -> int:
        return sum(line.quantity for line in self.lines)

    @property
    def total_cents(self) -> int:
        return sum(line.amount_cents for line in self.lines)
