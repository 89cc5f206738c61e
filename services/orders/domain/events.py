"""The events of an order. Each carries what the policies need, because policies keep no state."""

from shared.domain import Event, Instant, Part


class Line(Part):
    """`quantity` pieces of an item, at least 1, for `amount_cents` in total, at least 0."""

    sku: str
    quantity: int
    amount_cents: int


class OrderPlaced(Event):
    """No two lines have the same SKU."""

    TYPE = "order.placed"

    customer_id: str
    lines: tuple[Line, ...]
    placed_at: Instant


class LineReserved(Event):
    """Inventory has reserved a line; `asked` are the SKUs without an answer. After the last, the total is charged."""

    TYPE = "order.line_reserved"

    sku: str
    asked: tuple[str, ...]
    customer_id: str
    total_cents: int


class OrderConfirmed(Event):
    """Everything is reserved and charged. Final."""

    TYPE = "order.confirmed"

    customer_id: str
    lines: tuple[Line, ...]
    placed_at: Instant


class OrderRejected(Event):
    """The order can't be fulfilled; `code` says why. Final: what may be `reserved` or `charged` is given back."""

    TYPE = "order.rejected"

    code: str
    customer_id: str
    reserved: tuple[str, ...]
    charged: bool


class OrderCancelled(Event):
    """The customer has cancelled the order. Final: what may be `reserved` or `charged` is given back."""

    TYPE = "order.cancelled"

    customer_id: str
    reserved: tuple[str, ...]
    charged: bool


class ReservationOverdue(Event):
    """Inventory has not answered for these lines in time; the next `attempt` begins and asks again."""

    TYPE = "order.reservation_overdue"

    attempt: int
    lines: tuple[Line, ...]
    placed_at: Instant


class ChargeOverdue(Event):
    """Accounts has not answered in time; the next `attempt` begins and asks again."""

    TYPE = "order.charge_overdue"

    attempt: int
    customer_id: str
    total_cents: int


OrderEvent = (
    OrderPlaced | LineReserved | OrderConfirmed | OrderRejected | OrderCancelled | ReservationOverdue | ChargeOverdue
)
