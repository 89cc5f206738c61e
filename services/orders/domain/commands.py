"""The commands of an order: from its customer, from the answers of other services, and from the clock."""

from typing import Annotated

from pydantic import Field

from shared.domain import AggregateId, Command, Instant, Int64, Part


class LineWish(Part, extra="forbid"):
    """`quantity` pieces of an item for `amount_cents` in total; `decide` checks both ranges."""

    sku: AggregateId
    quantity: Int64
    amount_cents: Int64


class PlaceOrder(Command):
    """`placed_at` is when the customer ordered, which may be long before the order is reported."""

    TYPE = "order.place"

    customer_id: AggregateId
    # not strict: over HTTP, the array arrives as a list
    lines: Annotated[tuple[LineWish, ...], Field(strict=False)]
    placed_at: Instant


class CancelOrder(Command):
    TYPE = "order.cancel"


class RecordReservation(Command):
    """Inventory has reserved the line's pieces."""

    TYPE = "order.record_reservation"

    sku: AggregateId


class RecordRefusedReservation(Command):
    """Inventory has reserved nothing; `code` says why."""

    TYPE = "order.record_refused_reservation"

    sku: AggregateId
    code: str


class RecordCharge(Command):
    """The customer's account is charged."""

    TYPE = "order.record_charge"


class RecordRefusedCharge(Command):
    """The customer's account is not charged; `code` says why."""

    TYPE = "order.record_refused_charge"

    code: str


class CheckDeadline(Command):
    """Time is up for the answers to this `attempt`, counted from 1."""

    TYPE = "order.check_deadline"

    attempt: int


OrderCommand = (
    PlaceOrder
    | CancelOrder
    | RecordReservation
    | RecordRefusedReservation
    | RecordCharge
    | RecordRefusedCharge
    | CheckDeadline
)
