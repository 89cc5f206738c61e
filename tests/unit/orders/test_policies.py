"""Which commands are sent to which service after each event."""

from datetime import UTC, date, datetime

import pytest

from services.orders.contracts.accounts import (
    AccountAnswer,
    ChargeOrder,
    ChargeRefused,
    OrderCharged,
    RefundOrder,
    SettleOrder,
)
from services.orders.contracts.inventory import (
    InventoryAnswer,
    ReleaseStock,
    ReservationRefused,
    ReserveStock,
    ShipStock,
    StockReserved,
)
from services.orders.contracts.pickups import RequestPickup
from services.orders.domain.commands import (
    CheckDeadline,
    RecordCharge,
    RecordRefusedCharge,
    RecordRefusedReservation,
    RecordReservation,
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
from services.orders.policies import (
    ACCOUNT_ANSWER_SENDS,
    BY_COURIER_CENTS,
    INVENTORY_ANSWER_SENDS,
    NEXT_STEP_SENDS,
    next_step,
    record_account,
    record_inventory,
)
from services.orders.topology import ACCOUNTS_COMMANDS, COMMANDS, INVENTORY_COMMANDS, PICKUPS_COMMANDS, TIMERS
from shared.domain import EventEnvelope
from shared.domain.envelope import E
from shared.topology import Send

AT = datetime(1997, 1, 18, 9, 30, tzinfo=UTC)
ABBA = Line(sku="abba", quantity=2, amount_cents=2000)
BACH = Line(sku="bach", quantity=1, amount_cents=999)
DEAR = Line(sku="abba", quantity=9, amount_cents=BY_COURIER_CENTS - 999)


def happened(event: E, aggregate_id: str = "o-1") -> EventEnvelope[E]:
    return EventEnvelope(
        event_id="e-1",
        type=event.TYPE,
        schema_version=event.VERSION,
        aggregate_id=aggregate_id,
        sequence=1,
        occurred_at=AT,
        correlation_id="story",
        data=event,
    )


def reserve(line: Line) -> Send:
    command = ReserveStock(order_id="orders:o-1", quantity=line.quantity, ordered_on=date(1997, 1, 18))
    return Send(INVENTORY_COMMANDS, line.sku, command)


def release(sku: str) -> Send:
    return Send(INVENTORY_COMMANDS, sku, ReleaseStock(order_id="orders:o-1"))


def deadline(attempt: int) -> Send:
    return Send(TIMERS, "o-1", CheckDeadline(attempt=attempt))


CHARGE = Send(ACCOUNTS_COMMANDS, "c-1", ChargeOrder(order_id="orders:o-1", amount_cents=2999))
REFUND = Send(ACCOUNTS_COMMANDS, "c-1", RefundOrder(order_id="orders:o-1"))
SETTLE = Send(ACCOUNTS_COMMANDS, "c-1", SettleOrder(order_id="orders:o-1"))
CALL = '{"type": "order.confirmed", "data": {"order_id": "o-1"}}'
PICKUP = Send(PICKUPS_COMMANDS, "orders:o-1", RequestPickup(target="courier", body=CALL))
SHIPS = [Send(INVENTORY_COMMANDS, sku, ShipStock(order_id="orders:o-1")) for sku in ("abba", "bach")]

ANSWERS: list[tuple[OrderEvent, list[Send]]] = [
    (
        OrderPlaced(customer_id="c-1", lines=(ABBA, BACH), placed_at=AT),
        [reserve(ABBA), reserve(BACH), deadline(1)],
    ),
    (ReservationOverdue(attempt=2, lines=(BACH,), placed_at=AT), [reserve(BACH), deadline(2)]),
    (LineReserved(sku="abba", asked=("bach",), customer_id="c-1", total_cents=2999), []),
    (LineReserved(sku="bach", asked=(), customer_id="c-1", total_cents=2999), [CHARGE]),
    (ChargeOverdue(attempt=3, customer_id="c-1", total_cents=2999), [CHARGE, deadline(3)]),
    (OrderConfirmed(customer_id="c-1", lines=(ABBA, BACH), placed_at=AT), [*SHIPS, SETTLE]),
    (OrderConfirmed(customer_id="c-1", lines=(BACH, DEAR), placed_at=AT), [SHIPS[1], SHIPS[0], SETTLE, PICKUP]),
    (
        OrderRejected(code="inventory.out_of_stock", customer_id="c-1", reserved=("abba", "bach"), charged=False),
        [release("abba"), release("bach")],
    ),
    (
        OrderRejected(code="account.closed", customer_id="c-1", reserved=("abba",), charged=True),
        [release("abba"), REFUND],
    ),
    (OrderCancelled(customer_id="c-1", reserved=("abba",), charged=False), [release("abba")]),
    (OrderCancelled(customer_id="c-1", reserved=("abba",), charged=True), [release("abba"), REFUND]),
]


@pytest.mark.parametrize(("event", "sends"), ANSWERS)
def test_each_event_asks_for_the_next_step(event: OrderEvent, sends: list[Send]) -> None:
    assert next_step(happened(event)) == sends


@pytest.mark.parametrize(
    ("answer", "command"),
    [
        (StockReserved(order_id="orders:o-1"), RecordReservation(sku="abba")),
        (
            ReservationRefused(order_id="orders:o-1", code="inventory.out_of_stock"),
            RecordRefusedReservation(sku="abba", code="inventory.out_of_stock"),
        ),
    ],
)
def test_inventory_s_answers_reach_the_order(
    answer: InventoryAnswer, command: RecordReservation | RecordRefusedReservation
) -> None:
    assert record_inventory(happened(answer, "abba")) == [Send(COMMANDS, "o-1", command)]


@pytest.mark.parametrize(
    ("answer", "command"),
    [
        (OrderCharged(order_id="orders:o-1"), RecordCharge()),
        (ChargeRefused(order_id="orders:o-1", code="account.closed"), RecordRefusedCharge(code="account.closed")),
    ],
)
def test_accounts_answers_reach_the_order(answer: AccountAnswer, command: RecordCharge | RecordRefusedCharge) -> None:
    assert record_account(happened(answer, "c-1")) == [Send(COMMANDS, "o-1", command)]


@pytest.mark.parametrize("reference", ["others:o-1", "o-1", "ordersx:o-1", ":o-1"])
def test_an_answer_to_another_process_is_ignored(reference: str) -> None:
    assert record_inventory(happened(StockReserved(order_id=reference), "abba")) == []
    assert record_inventory(happened(ReservationRefused(order_id=reference, code="inventory.unknown"), "abba")) == []
    assert record_account(happened(OrderCharged(order_id=reference), "c-1")) == []
    assert record_account(happened(ChargeRefused(order_id=reference, code="account.closed"), "c-1")) == []


def test_every_command_that_is_sent_is_declared() -> None:
    sent = {(send.topic, type(send.command)) for _, sends in ANSWERS for send in sends}
    assert sent == {(topic, command) for topic, commands in NEXT_STEP_SENDS.items() for command in commands}
    assert {COMMANDS: (RecordReservation, RecordRefusedReservation)} == INVENTORY_ANSWER_SENDS
    assert {COMMANDS: (RecordCharge, RecordRefusedCharge)} == ACCOUNT_ANSWER_SENDS
