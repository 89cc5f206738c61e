"""What an order accepts and refuses, in sentences."""

from datetime import UTC, datetime

import pytest

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
from services.orders.domain.decide import ATTEMPTS, DECIDER, MAX_LINE_CENTS, MAX_LINES
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
from shared.testing.scenario import Scenario

given = Scenario(DECIDER)

AT = datetime(1997, 1, 18, 9, 30, tzinfo=UTC)
ABBA = Line(sku="abba", quantity=2, amount_cents=2000)
BACH = Line(sku="bach", quantity=1, amount_cents=999)

PLACED = OrderPlaced(customer_id="c-1", lines=(ABBA, BACH), placed_at=AT)
ABBA_RESERVED = LineReserved(sku="abba", asked=("bach",), customer_id="c-1", total_cents=2999)
BACH_RESERVED = LineReserved(sku="bach", asked=(), customer_id="c-1", total_cents=2999)
CONFIRMED = OrderConfirmed(customer_id="c-1", lines=(ABBA, BACH), placed_at=AT)
CANCELLED = OrderCancelled(customer_id="c-1", reserved=("abba", "bach"), charged=False)

RESERVING = (PLACED, ABBA_RESERVED)
CHARGING = (*RESERVING, BACH_RESERVED)
ENDS: list[tuple[OrderEvent, ...]] = [
    (*CHARGING, CONFIRMED),
    (*CHARGING, OrderRejected(code="account.closed", customer_id="c-1", reserved=("abba", "bach"), charged=True)),
    (PLACED, CANCELLED),
]
ANSWERS: list[OrderCommand] = [
    RecordReservation(sku="abba"),
    RecordRefusedReservation(sku="abba", code="inventory.out_of_stock"),
    RecordCharge(),
    RecordRefusedCharge(code="account.closed"),
    CheckDeadline(attempt=1),
]


def place(*lines: Line) -> PlaceOrder:
    wishes = tuple(LineWish(sku=line.sku, quantity=line.quantity, amount_cents=line.amount_cents) for line in lines)
    return PlaceOrder(customer_id="c-1", lines=wishes, placed_at=AT)


def line(**fields: int | str) -> Line:
    return ABBA.model_copy(update=fields)


def rejected(code: str, *, charged: bool = False) -> OrderRejected:
    return OrderRejected(code=code, customer_id="c-1", reserved=("abba", "bach"), charged=charged)


def test_an_order_is_placed() -> None:
    given().when(place(ABBA, BACH)).then(PLACED)


def test_a_gift_costs_nothing() -> None:
    gift = line(amount_cents=0)
    given().when(place(gift)).then(OrderPlaced(customer_id="c-1", lines=(gift,), placed_at=AT))


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([], "order.no_lines"),
        ([line(sku=str(number)) for number in range(MAX_LINES + 1)], "order.too_many_lines"),
        ([ABBA, BACH, ABBA], "order.sku_repeated"),
        ([line(quantity=0)], "order.quantity_not_positive"),
        ([line(quantity=-1)], "order.quantity_not_positive"),
        ([line(amount_cents=-1)], "order.amount_out_of_range"),
        ([line(amount_cents=MAX_LINE_CENTS + 1)], "order.amount_out_of_range"),
    ],
)
def test_a_senseless_order_is_refused(lines: list[Line], code: str) -> None:
    given().when(place(*lines)).then_refused(code)


@pytest.mark.parametrize("past", [RESERVING, CHARGING, *ENDS])
def test_an_order_is_placed_once(past: tuple[OrderEvent, ...]) -> None:
    given(*past).when(place(ABBA)).then_refused("order.already_placed")


@pytest.mark.parametrize("command", [CancelOrder(), *ANSWERS])
def test_an_order_that_was_never_placed_is_unknown(command: OrderCommand) -> None:
    given().when(command).then_refused("order.unknown")


def test_lines_are_reserved_whichever_is_answered_first() -> None:
    given(PLACED).when(RecordReservation(sku="abba")).then(ABBA_RESERVED)
    given(*RESERVING).when(RecordReservation(sku="bach")).then(BACH_RESERVED)
    given(PLACED).when(RecordReservation(sku="bach")).then(
        LineReserved(sku="bach", asked=("abba",), customer_id="c-1", total_cents=2999)
    )


def test_an_answer_counts_once() -> None:
    given(*RESERVING).when(RecordReservation(sku="abba")).then_nothing()
    given(*CHARGING).when(RecordReservation(sku="bach")).then_nothing()


def test_a_charged_order_is_confirmed() -> None:
    given(*CHARGING).when(RecordCharge()).then(CONFIRMED)


def test_an_order_without_stock_is_rejected_and_gives_back_what_is_or_may_be_reserved() -> None:
    refusal = RecordRefusedReservation(sku="bach", code="inventory.out_of_stock")
    given(PLACED).when(refusal).then(rejected("inventory.out_of_stock"))
    given(*RESERVING).when(refusal).then(rejected("inventory.out_of_stock"))


def test_an_order_without_credit_is_rejected_and_gives_everything_back() -> None:
    refusal = RecordRefusedCharge(code="account.order_limit_exceeded")
    given(*CHARGING).when(refusal).then(rejected("account.order_limit_exceeded", charged=True))


def test_an_order_can_be_cancelled_while_it_is_open() -> None:
    given(PLACED).when(CancelOrder()).then(CANCELLED)
    given(*RESERVING).when(CancelOrder()).then(CANCELLED)
    given(*CHARGING).when(CancelOrder()).then(CANCELLED.model_copy(update={"charged": True}))


def test_a_cancelled_order_stays_cancelled() -> None:
    given(PLACED, CANCELLED).when(CancelOrder()).then_nothing()


@pytest.mark.parametrize("past", ENDS[:2])
def test_an_order_that_ended_otherwise_cannot_be_cancelled(past: tuple[OrderEvent, ...]) -> None:
    given(*past).when(CancelOrder()).then_refused("order.not_open")


@pytest.mark.parametrize("past", ENDS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_after_the_end_changes_nothing(past: tuple[OrderEvent, ...], answer: OrderCommand) -> None:
    given(*past).when(answer).then_nothing()


def test_a_charge_is_ignored_before_everything_is_reserved() -> None:
    given(*RESERVING).when(RecordCharge()).then_nothing()
    given(*RESERVING).when(RecordRefusedCharge(code="account.closed")).then_nothing()


def test_lines_without_an_answer_in_time_are_asked_for_again() -> None:
    given(PLACED).when(CheckDeadline(attempt=1)).then(ReservationOverdue(attempt=2, lines=(ABBA, BACH), placed_at=AT))
    given(*RESERVING).when(CheckDeadline(attempt=1)).then(ReservationOverdue(attempt=2, lines=(BACH,), placed_at=AT))


def test_a_charge_without_an_answer_in_time_is_asked_for_again() -> None:
    given(*CHARGING).when(CheckDeadline(attempt=1)).then(ChargeOverdue(attempt=2, customer_id="c-1", total_cents=2999))


def test_only_the_deadline_of_the_last_attempt_counts() -> None:
    past = (PLACED, ReservationOverdue(attempt=2, lines=(ABBA, BACH), placed_at=AT))
    given(*past).when(CheckDeadline(attempt=1)).then_nothing()
    given(*past, ABBA_RESERVED, BACH_RESERVED).when(CheckDeadline(attempt=2)).then(
        ChargeOverdue(attempt=3, customer_id="c-1", total_cents=2999)
    )


def test_an_order_is_rejected_when_its_last_attempt_gets_no_answer() -> None:
    late = ReservationOverdue(attempt=ATTEMPTS, lines=(BACH,), placed_at=AT)
    given(*RESERVING, late).when(CheckDeadline(attempt=ATTEMPTS)).then(rejected("order.timed_out"))
    given(*CHARGING, ChargeOverdue(attempt=ATTEMPTS, customer_id="c-1", total_cents=2999)).when(
        CheckDeadline(attempt=ATTEMPTS)
    ).then(rejected("order.timed_out", charged=True))


def test_the_deadlines_are_of_the_whole_order_however_late_a_step_was_asked_for() -> None:
    waits: list[OrderEvent] = [
        ReservationOverdue(attempt=attempt, lines=(BACH,), placed_at=AT) for attempt in range(2, ATTEMPTS + 1)
    ]
    charging: tuple[OrderEvent, ...] = (PLACED, ABBA_RESERVED, *waits, BACH_RESERVED)
    given(*charging).when(CheckDeadline(attempt=ATTEMPTS)).then(rejected("order.timed_out", charged=True))
