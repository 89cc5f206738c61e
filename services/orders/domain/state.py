"""An order's phases are the steps of its process: reserving, charging, and one of three ends."""

from typing import Annotated, Any, Literal, assert_never

from pydantic import Field

from services.orders.domain.events import (
    ChargeOverdue,
    Line,
    LineReserved,
    OrderCancelled,
    OrderConfirmed,
    OrderEvent,
    OrderPlaced,
    OrderRejected,
    ReservationOverdue,
)
from shared.domain import Instant, State


class Unplaced(State):
    phase: Literal["unplaced"] = "unplaced"


class Placed(State):
    """What every later phase knows. attempt: counted from 1 over the whole order; each has its own deadline."""

    customer_id: str
    lines: tuple[Line, ...]
    placed_at: Instant
    attempt: int = 1

    @property
    def skus(self) -> tuple[str, ...]:
        return tuple(line.sku for line in self.lines)

    @property
    def total_cents(self) -> int:
        return sum(line.amount_cents for line in self.lines)


class Reserving(Placed):
    """Waiting for inventory to answer for the SKUs in `asked`."""

    phase: Literal["reserving"] = "reserving"
    asked: tuple[str, ...]


class Charging(Placed):
    """Everything is reserved; waiting for accounts to answer."""

    phase: Literal["charging"] = "charging"


class Confirmed(Placed):
    phase: Literal["confirmed"] = "confirmed"


class Rejected(Placed):
    phase: Literal["rejected"] = "rejected"
    code: str


class Cancelled(Placed):
    phase: Literal["cancelled"] = "cancelled"


Order = Annotated[Unplaced | Reserving | Charging | Confirmed | Rejected | Cancelled, Field(discriminator="phase")]

INITIAL: Order = Unplaced()


def evolve(order: Order, event: OrderEvent) -> Order:
    """The order after `event`; until it is placed, no other event changes it."""
    match event, order:
        case OrderPlaced(customer_id=customer_id, lines=lines, placed_at=placed_at), _:
            asked = tuple(line.sku for line in lines)
            return Reserving(customer_id=customer_id, lines=lines, placed_at=placed_at, asked=asked)
        case _, Unplaced():
            return order
        case LineReserved(asked=()), _:
            return Charging(**_placed(order))
        case LineReserved(asked=asked), _:
            return Reserving(**_placed(order), asked=asked)
        case OrderConfirmed(), _:
            return Confirmed(**_placed(order))
        case OrderRejected(code=code), _:
            return Rejected(**_placed(order), code=code)
        case OrderCancelled(), _:
            return Cancelled(**_placed(order))
        case ReservationOverdue() | ChargeOverdue(), _:
            return order.model_copy(update={"attempt": event.attempt})
        case _:
            assert_never(event)


def _placed(order: Placed) -> dict[str, Any]:
    return {name: getattr(order, name) for name in Placed.model_fields}
