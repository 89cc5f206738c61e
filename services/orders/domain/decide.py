"""Which commands an order accepts, and what follows from the answers of other services.

An order does not wait for its compensations. Each is sent after the request that it undoes, to the same partition, so
it finds what there is to undo. An answer that arrives after the order has ended changes nothing.
"""

from typing import Any, assert_never, get_args

from services.orders.domain.commands import (
    CancelOrder,
    CheckDeadline,
    LineWish,
    OrderCommand,
    PlaceOrder,
    RecordCharge,
    RecordRefusedCharge,
    RecordRefusedReservation,
    RecordReservation,
)
from services.orders.domain.errors import (
    AlreadyPlaced,
    AmountOutOfRange,
    NoLines,
    NotOpen,
    QuantityNotPositive,
    SkuRepeated,
    TooManyLines,
    UnknownOrder,
)
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
from services.orders.domain.state import INITIAL, Cancelled, Charging, Order, Reserving, Unplaced, evolve
from shared.domain import Decider

MAX_LINES = 100
MAX_LINE_CENTS = 1_000_000_00
ATTEMPTS = 3

TIMED_OUT = "order.timed_out"


def decide(command: OrderCommand, order: Order) -> list[OrderEvent]:
    """The events that follow from `command`; an empty list means that nothing changes. Raises OrderError."""
    match command, order:
        case RecordReservation(sku=sku), Reserving(asked=asked) if sku in asked:
            return [_reserved(order, sku)]
        case RecordCharge(), Charging():
            return [OrderConfirmed(customer_id=order.customer_id, lines=order.lines, placed_at=order.placed_at)]
        case PlaceOrder(customer_id=customer, lines=lines, placed_at=at), Unplaced():
            return [OrderPlaced(customer_id=customer, lines=_checked(lines), placed_at=at)]
        case _, Unplaced():
            raise UnknownOrder(f"{type(command).__name__} refused: the order was never placed")
        case PlaceOrder(), _:
            raise AlreadyPlaced(f"PlaceOrder refused: the order is {order.phase}")
        case RecordRefusedReservation(sku=sku, code=code), Reserving(asked=asked) if sku in asked:
            return [_rejected(order, code)]
        case RecordRefusedCharge(code=code), Charging():
            return [_rejected(order, code)]
        case CheckDeadline(attempt=attempt), Reserving() | Charging() if attempt == order.attempt:
            return [_overdue(order)]
        case CancelOrder(), Reserving() | Charging():
            return [OrderCancelled(**_to_give_back(order))]
        case CancelOrder(), Cancelled():
            return []
        case CancelOrder(), _:
            raise NotOpen(f"CancelOrder refused: the order is {order.phase}")
        case RecordReservation() | RecordRefusedReservation() | RecordCharge() | RecordRefusedCharge(), _:
            return []
        case CheckDeadline(), _:
            return []
        case _:
            assert_never(command)


def _reserved(order: Reserving, sku: str) -> LineReserved:
    asked = tuple(other for other in order.asked if other != sku)
    return LineReserved(sku=sku, asked=asked, customer_id=order.customer_id, total_cents=order.total_cents)


def _rejected(order: Reserving | Charging, code: str) -> OrderRejected:
    return OrderRejected(code=code, **_to_give_back(order))


def _to_give_back(order: Reserving | Charging) -> dict[str, Any]:
    """All that may be reserved or charged by now, or will be once a request still on its way arrives."""
    charged = isinstance(order, Charging)
    return {"customer_id": order.customer_id, "reserved": order.skus, "charged": charged}


def _overdue(order: Reserving | Charging) -> OrderEvent:
    if order.attempt >= ATTEMPTS:
        return _rejected(order, TIMED_OUT)
    attempt = order.attempt + 1
    if isinstance(order, Charging):
        return ChargeOverdue(attempt=attempt, customer_id=order.customer_id, total_cents=order.total_cents)
    lines = tuple(line for line in order.lines if line.sku in order.asked)
    return ReservationOverdue(attempt=attempt, lines=lines, placed_at=order.placed_at)


def _checked(lines: tuple[LineWish, ...]) -> tuple[Line, ...]:
    if not lines:
        raise NoLines("an order has at least 1 line")
    if len(lines) > MAX_LINES:
        raise TooManyLines(f"{len(lines)} lines refused: an order has at most {MAX_LINES}")
    if len({line.sku for line in lines}) < len(lines):
        raise SkuRepeated("two lines have the same SKU: merge them into one")
    return tuple(_line(line) for line in lines)


def _line(wish: LineWish) -> Line:
    if wish.quantity <= 0:
        raise QuantityNotPositive(f"{wish.quantity} pieces of {wish.sku} refused: a quantity is at least 1")
    if not 0 <= wish.amount_cents <= MAX_LINE_CENTS:
        raise AmountOutOfRange(f"{wish.sku} for {wish.amount_cents} cents refused: 0 to {MAX_LINE_CENTS} are allowed")
    return Line(sku=wish.sku, quantity=wish.quantity, amount_cents=wish.amount_cents)


DECIDER: Decider[OrderCommand, OrderEvent, Order] = Decider(
    decide=decide,
    evolve=evolve,
    initial=INITIAL,
    commands=get_args(OrderCommand),
    events=get_args(OrderEvent),
    state=Order,
)
