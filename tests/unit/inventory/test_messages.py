"""Messages are for ever: each version of each type, once written, stays readable.

`golden` holds one record of every type and version, as a producer of that time wrote it.
"""

import json
from datetime import date
from pathlib import Path

import pytest

from services.inventory.domain.commands import (
    DiscontinueItem,
    InventoryCommand,
    NameItem,
    ReceiveStock,
    ReleaseStock,
    ReserveStock,
    ShipStock,
)
from services.inventory.domain.decide import DECIDER
from services.inventory.domain.events import (
    InventoryEvent,
    ItemDiscontinued,
    ItemNamed,
    ReservationRefused,
    StockReceived,
    StockReleased,
    StockReserved,
    StockShipped,
)
from shared.domain import BadMessage
from shared.testing.golden import Golden

golden = Golden(Path(__file__).parent / "golden", DECIDER)

EVENTS: dict[str, InventoryEvent] = {
    "stock.received.v1": StockReceived(quantity=10),
    "stock.reserved.v1": StockReserved(order_id="o-1", quantity=4),
    "stock.reservation_refused.v1": ReservationRefused(order_id="o-2", quantity=7, code="inventory.out_of_stock"),
    "stock.released.v1": StockReleased(order_id="o-1", quantity=4),
    "stock.shipped.v1": StockShipped(order_id="o-1", quantity=4),
    "stock.discontinued.v1": ItemDiscontinued(since=date(1998, 3, 1)),
    "stock.named.v1": ItemNamed(name="Kind of Blue"),
}
COMMANDS: dict[str, InventoryCommand] = {
    "stock.receive.v1": ReceiveStock(quantity=10),
    "stock.reserve.v1": ReserveStock(order_id="o-1", quantity=4, ordered_on=date(1997, 1, 18)),
    "stock.release.v1": ReleaseStock(order_id="o-1"),
    "stock.ship.v1": ShipStock(order_id="o-1"),
    "stock.discontinue.v1": DiscontinueItem(since=date(1998, 3, 1)),
    "stock.name.v1": NameItem(name="Kind of Blue"),
}


@pytest.mark.parametrize(("name", "event"), EVENTS.items())
def test_every_event_ever_written_can_be_read(name: str, event: InventoryEvent) -> None:
    assert DECIDER.event_codec.decode(golden(name)).data == event


@pytest.mark.parametrize(("name", "command"), COMMANDS.items())
def test_every_command_ever_written_can_be_read(name: str, command: InventoryCommand) -> None:
    assert DECIDER.command_codec.decode(golden(name)).data == command


def test_every_version_of_every_message_has_its_golden_record() -> None:
    golden.check()
    assert golden.names() == EVENTS.keys() | COMMANDS.keys()


@pytest.mark.parametrize("since", ["", "5", 5, "1998-13-01", "01.03.1998", None])
def test_what_is_not_a_day_is_no_command(since: object) -> None:
    record = json.loads(golden("stock.discontinue.v1"))
    with pytest.raises(BadMessage, match="since"):
        DECIDER.command_codec.decode(json.dumps(record | {"data": {"since": since}}).encode())


@pytest.mark.parametrize("quantity", [1.0, "1", True, None, 2**63])
def test_a_quantity_that_is_not_a_64_bit_int_is_no_command(quantity: object) -> None:
    record = json.loads(golden("stock.receive.v1"))
    with pytest.raises(BadMessage, match="quantity"):
        DECIDER.command_codec.decode(json.dumps(record | {"data": {"quantity": quantity}}).encode())
