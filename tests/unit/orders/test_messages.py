"""Messages are for ever: each version of each type, once written, stays readable.

`golden` holds one record of every type and version, as a producer of that time wrote it.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

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
from services.orders.domain.decide import DECIDER
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
from shared.domain import BadMessage
from shared.testing.golden import Golden

golden = Golden(Path(__file__).parent / "golden", DECIDER)

AT = datetime(1997, 1, 18, 9, 30, tzinfo=UTC)
LINE = Line(sku="sku-007", quantity=2, amount_cents=2933)
WISH = LineWish(sku="sku-007", quantity=2, amount_cents=2933)

EVENTS: dict[str, OrderEvent] = {
    "order.placed.v1": OrderPlaced(customer_id="customer-00004", lines=(LINE,), placed_at=AT),
    "order.line_reserved.v1": LineReserved(
        sku="sku-007", asked=("sku-008",), customer_id="customer-00004", total_cents=2933
    ),
    "order.confirmed.v1": OrderConfirmed(customer_id="customer-00004", lines=(LINE,), placed_at=AT),
    "order.rejected.v1": OrderRejected(
        code="inventory.out_of_stock", customer_id="customer-00004", reserved=("sku-007",), charged=False
    ),
    "order.cancelled.v1": OrderCancelled(customer_id="customer-00004", reserved=("sku-007",), charged=True),
    "order.reservation_overdue.v1": ReservationOverdue(attempt=2, lines=(LINE,), placed_at=AT),
    "order.charge_overdue.v1": ChargeOverdue(attempt=2, customer_id="customer-00004", total_cents=2933),
}
COMMANDS: dict[str, OrderCommand] = {
    "order.place.v1": PlaceOrder(customer_id="customer-00004", lines=(WISH,), placed_at=AT),
    "order.cancel.v1": CancelOrder(),
    "order.record_reservation.v1": RecordReservation(sku="sku-007"),
    "order.record_refused_reservation.v1": RecordRefusedReservation(sku="sku-007", code="inventory.out_of_stock"),
    "order.record_charge.v1": RecordCharge(),
    "order.record_refused_charge.v1": RecordRefusedCharge(code="account.closed"),
    "order.check_deadline.v1": CheckDeadline(attempt=1),
}


@pytest.mark.parametrize(("name", "event"), EVENTS.items())
def test_every_event_ever_written_can_be_read(name: str, event: OrderEvent) -> None:
    assert DECIDER.event_codec.decode(golden(name)).data == event


@pytest.mark.parametrize(("name", "command"), COMMANDS.items())
def test_every_command_ever_written_can_be_read(name: str, command: OrderCommand) -> None:
    assert DECIDER.command_codec.decode(golden(name)).data == command


def test_every_version_of_every_message_has_its_golden_record() -> None:
    golden.check()
    assert golden.names() == EVENTS.keys() | COMMANDS.keys()


@pytest.mark.parametrize(
    "fields",
    [
        {"lines": [{"sku": "sku-007", "quantity": 1, "amount_cents": 1, "amount": 1}]},
        {"lines": [{"sku": "", "quantity": 1, "amount_cents": 1}]},
        {"lines": [{"sku": "sku-007", "quantity": "1", "amount_cents": 1}]},
        {"lines": {}},
        {"customer_id": "\x00"},
        {"placed_at": "1997-01-18"},
        {"placed_at": 853057800},
        {"surprise": 1},
    ],
)
def test_a_command_that_is_only_partly_understood_is_refused(fields: dict[str, object]) -> None:
    record = json.loads(golden("order.place.v1"))
    with pytest.raises(BadMessage):
        DECIDER.command_codec.decode(json.dumps(record | {"data": record["data"] | fields}).encode())
