"""What holds for every order, whatever is asked of it and whichever answer comes first."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

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
from services.orders.domain.decide import ATTEMPTS, DECIDER
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
from services.orders.domain.state import INITIAL, Order, Placed, Unplaced, evolve
from shared.domain import Row, fold
from shared.testing.scenario import history

AT = datetime(1997, 1, 18, 9, 30, tzinfo=UTC)
SKUS = ("abba", "bach", "cure")

skus = st.sampled_from(SKUS)
wishes = st.builds(LineWish, sku=skus, quantity=st.integers(0, 3), amount_cents=st.integers(-1, 999))
places = st.builds(
    PlaceOrder, customer_id=st.just("c-1"), lines=st.lists(wishes, max_size=3).map(tuple), placed_at=st.just(AT)
)
good = PlaceOrder(
    customer_id="c-1", lines=tuple(LineWish(sku=sku, quantity=1, amount_cents=100) for sku in SKUS), placed_at=AT
)
answers = st.one_of(
    st.builds(RecordReservation, sku=skus),
    st.builds(RecordRefusedReservation, sku=skus, code=st.just("inventory.out_of_stock")),
    st.just(RecordCharge()),
    st.builds(RecordRefusedCharge, code=st.just("account.closed")),
    st.builds(CheckDeadline, attempt=st.integers(0, ATTEMPTS + 1)),
)
likely = st.one_of(st.builds(RecordReservation, sku=skus), st.just(RecordCharge()))
commands = st.one_of(places, st.just(CancelOrder()), answers, likely)

lines = st.lists(st.builds(Line, sku=skus, quantity=st.integers(), amount_cents=st.integers())).map(tuple)
some_skus = st.lists(skus).map(tuple)
numbers = st.integers(-5, 5)
customer = st.just("c-1")
events = st.one_of(
    st.builds(OrderPlaced, customer_id=customer, lines=lines, placed_at=st.just(AT)),
    st.builds(LineReserved, sku=skus, asked=some_skus, customer_id=customer, total_cents=numbers),
    st.builds(OrderConfirmed, customer_id=customer, lines=lines, placed_at=st.just(AT)),
    st.builds(OrderRejected, code=st.text(), customer_id=customer, reserved=some_skus, charged=st.booleans()),
    st.builds(OrderCancelled, customer_id=customer, reserved=some_skus, charged=st.booleans()),
    st.builds(ReservationOverdue, attempt=numbers, lines=lines, placed_at=st.just(AT)),
    st.builds(ChargeOverdue, attempt=numbers, customer_id=customer, total_cents=numbers),
)

ENDS = (OrderConfirmed, OrderRejected, OrderCancelled)


@given(st.lists(commands))
def test_an_order_is_placed_first_and_ends_at_most_once(asked: list[OrderCommand]) -> None:
    past = history(DECIDER, [good, *asked])
    assert [type(event) for event in past].count(OrderPlaced) == 1
    assert isinstance(past[0], OrderPlaced)
    assert not any(isinstance(event, ENDS) for event in past[:-1])


@given(st.lists(commands))
def test_only_wholly_reserved_orders_are_confirmed(asked: list[OrderCommand]) -> None:
    past = history(DECIDER, [good, *asked])
    if isinstance(past[-1], OrderConfirmed):
        assert {event.sku for event in past if isinstance(event, LineReserved)} == set(SKUS)


@given(st.lists(st.one_of(answers, likely)))
def test_an_order_repeats_its_requests_a_bounded_number_of_times(asked: list[OrderCommand]) -> None:
    overdue = [
        event for event in history(DECIDER, [good, *asked]) if isinstance(event, ReservationOverdue | ChargeOverdue)
    ]
    assert [event.attempt for event in overdue] == list(range(2, len(overdue) + 2))
    assert len(overdue) < ATTEMPTS


@given(st.lists(commands), answers)
def test_the_same_answer_twice_is_the_same_as_once(asked: list[OrderCommand], answer: OrderCommand) -> None:
    assert history(DECIDER, [good, *asked, answer, answer]) == history(DECIDER, [good, *asked, answer])


@given(st.lists(events))
def test_evolve_is_total_and_a_row_survives_its_bytes(past: list[OrderEvent]) -> None:
    order: Order = fold(evolve, past, INITIAL)
    assert isinstance(order, Unplaced | Placed)
    row = Row(len(past), order, {}, 0)
    assert DECIDER.row_codec.decode(DECIDER.row_codec.encode(row)) == row
