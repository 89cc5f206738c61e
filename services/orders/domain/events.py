"""What can have happened to an order. Each event says what the policies need, for they keep nothing."""

from pydantic import BaseModel, ConfigDict

from shared.es.message import Event
from shared.es.times import Instant


class Line(BaseModel):
    """`quantity` pieces of an item, at least 1, for `amount_cents` together, at least 0."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    sku: str
    quantity: int
    amount_cents: int


class OrderPlaced(Event):
    """Its lines are of different items."""

    TYPE = "order.placed"

    customer_id: str
    lines: tuple[Line, ...]
    placed_at: Instant


class LineReserved(Event):
    """Inventory keeps one more line; `asked` are the SKUs without an answer. After the last, the total is charged."""

    TYPE = "order.line_reserved"

    sku: str
    asked: tuple[str, ...]
    customer_id: str
    total_cents: int


class OrderConfirmed(Event):
    """Everything is reserved and charged. The end."""

    TYPE = "order.confirmed"

    customer_id: str
    lines: tuple[Line, ...]
    placed_at: Instant


class OrderRejected(Event):
    """It can't be fulfilled; `code` says why. The end: what may be `reserved` or `charged` is given back."""

    TYPE = "order.rejected"

    code: str
    customer_id: str
    reserved: tuple[str, ...]
    charged: bool


class OrderCancelled(Event):
    """The customer took it back. The end: what may be `reserved` or `charged` is given back."""

    TYPE = "order.cancelled"

    customer_id: str
    reserved: tuple[str, ...]
    charged: bool


class ReservationOverdue(Event):
    """Inventory has not answered for these lines in time; the `attempt` that begins asks again."""

    TYPE = "order.reservation_overdue"

    attempt: int
    lines: tuple[Line, ...]
    placed_at: Instant


class ChargeOverdue(Event):
    """Accounts has not answered in time; the `attempt` that begins asks again."""

    TYPE = "order.charge_overdue"

    attempt: int
    customer_id: str
    total_cents: int


OrderEvent = (
    OrderPlaced | LineReserved | OrderConfirmed | OrderRejected | OrderCancelled | ReservationOverdue | ChargeOverdue
)
