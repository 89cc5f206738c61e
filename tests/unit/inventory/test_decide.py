"""What an item accepts and refuses, in sentences."""

from datetime import date

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
from services.inventory.domain.decide import DECIDER, MAX_QUANTITY, MAX_RESERVATIONS
from services.inventory.domain.events import (
    ItemDiscontinued,
    ItemNamed,
    ReservationRefused,
    StockReceived,
    StockReleased,
    StockReserved,
    StockShipped,
)
from services.inventory.domain.state import Listed
from shared.domain.ids import REFERENCE_MAX_BYTES
from shared.testing.scenario import Scenario

given = Scenario(DECIDER)

DAY = date(1998, 3, 1)
DELIVERED = StockReceived(quantity=10)
KEPT = StockReserved(order_id="o-1", quantity=4)
RELEASED = StockReleased(order_id="o-1", quantity=4)
SHIPPED = StockShipped(order_id="o-1", quantity=4)


def reserve(order_id: str, quantity: int, ordered_on: date = DAY) -> ReserveStock:
    return ReserveStock(order_id=order_id, quantity=quantity, ordered_on=ordered_on)


def refused(order_id: str, quantity: int, code: str) -> ReservationRefused:
    return ReservationRefused(order_id=order_id, quantity=quantity, code=code)


def test_the_orders_that_an_item_is_reserved_for_are_limited() -> None:
    kept = [StockReserved(order_id=f"o-{number}", quantity=1) for number in range(MAX_RESERVATIONS)]
    full = given(StockReceived(quantity=MAX_QUANTITY), *kept)
    full.when(reserve("late", 1)).then(refused("late", 1, "inventory.too_many_reservations"))
    full.when(reserve("o-1", 1)).then_nothing()


def test_the_orders_that_an_item_is_reserved_for_fit_into_a_record() -> None:
    kept = {f"{number:04}".ljust(REFERENCE_MAX_BYTES, '"'): MAX_QUANTITY for number in range(MAX_RESERVATIONS)}
    assert len(Listed(reservations=kept).model_dump_json()) < 900_000, "the recent outcomes need room, too"


def test_a_delivery_lists_an_item_and_adds_to_a_listed_one() -> None:
    given().when(ReceiveStock(quantity=10)).then(DELIVERED)
    given(DELIVERED).when(ReceiveStock(quantity=10)).then(DELIVERED)


@pytest.mark.parametrize("quantity", [0, -1, -(2**63)])
def test_a_delivery_of_nothing_is_refused(quantity: int) -> None:
    given(DELIVERED).when(ReceiveStock(quantity=quantity)).then_refused("inventory.quantity_not_positive")


def test_a_delivery_of_over_a_million_is_refused() -> None:
    given().when(ReceiveStock(quantity=MAX_QUANTITY + 1)).then_refused("inventory.quantity_too_large")


def test_pieces_for_sale_can_be_reserved() -> None:
    given(DELIVERED).when(reserve("o-1", 10)).then(StockReserved(order_id="o-1", quantity=10))
    given(DELIVERED, KEPT).when(reserve("o-2", 6)).then(StockReserved(order_id="o-2", quantity=6))


def test_reserving_more_than_is_for_sale_is_refused_with_an_event() -> None:
    given(DELIVERED).when(reserve("o-1", 11)).then(refused("o-1", 11, "inventory.out_of_stock"))
    given(DELIVERED, KEPT).when(reserve("o-2", 7)).then(refused("o-2", 7, "inventory.out_of_stock"))


def test_reserving_an_item_that_was_never_delivered_is_refused_with_an_event() -> None:
    given().when(reserve("o-1", 1)).then(refused("o-1", 1, "inventory.unknown"))


@pytest.mark.parametrize("quantity", [0, -1])
def test_a_senseless_reservation_is_refused_with_an_event(quantity: int) -> None:
    given(DELIVERED).when(reserve("o-1", quantity)).then(refused("o-1", quantity, "inventory.quantity_not_positive"))


def test_an_order_reserves_its_pieces_once() -> None:
    given(DELIVERED, KEPT).when(reserve("o-1", 4)).then_nothing()


def test_a_refused_reservation_can_be_asked_for_again() -> None:
    past = (refused("o-1", 4, "inventory.unknown"), DELIVERED)
    given(*past).when(reserve("o-1", 4)).then(KEPT)


def test_released_pieces_are_for_sale_again() -> None:
    given(DELIVERED, KEPT).when(ReleaseStock(order_id="o-1")).then(RELEASED)
    given(DELIVERED, KEPT, RELEASED).when(reserve("o-2", 10)).then(StockReserved(order_id="o-2", quantity=10))


def test_releasing_without_a_reservation_changes_nothing() -> None:
    given().when(ReleaseStock(order_id="o-1")).then_nothing()
    given(DELIVERED, KEPT, RELEASED).when(ReleaseStock(order_id="o-1")).then_nothing()
    given(DELIVERED, KEPT, SHIPPED).when(ReleaseStock(order_id="o-1")).then_nothing()


def test_reserved_pieces_can_be_shipped_and_are_gone() -> None:
    given(DELIVERED, KEPT).when(ShipStock(order_id="o-1")).then(SHIPPED)
    given(DELIVERED, KEPT, SHIPPED).when(reserve("o-2", 7)).then(refused("o-2", 7, "inventory.out_of_stock"))


@pytest.mark.parametrize("past", [(), (DELIVERED,), (DELIVERED, KEPT, RELEASED), (DELIVERED, KEPT, SHIPPED)])
def test_only_reserved_pieces_can_be_shipped(past: tuple[StockReceived, ...]) -> None:
    given(*past).when(ShipStock(order_id="o-1")).then_refused("inventory.not_reserved")


def test_a_discontinued_item_is_sold_to_earlier_orders_only() -> None:
    past = (DELIVERED, ItemDiscontinued(since=DAY))
    given(*past).when(reserve("o-1", 4, date(1998, 2, 28))).then(KEPT)
    given(*past).when(reserve("o-1", 4, DAY)).then(refused("o-1", 4, "inventory.discontinued"))
    given(*past).when(reserve("o-1", 99, DAY)).then(refused("o-1", 99, "inventory.discontinued"))


def test_pieces_reserved_before_a_discontinuation_can_still_be_shipped() -> None:
    given(DELIVERED, KEPT, ItemDiscontinued(since=DAY)).when(ShipStock(order_id="o-1")).then(SHIPPED)


def test_the_day_of_discontinuation_can_move() -> None:
    past = (DELIVERED, ItemDiscontinued(since=DAY))
    given(*past).when(DiscontinueItem(since=DAY)).then_nothing()
    given(*past).when(DiscontinueItem(since=date(1998, 4, 1))).then(ItemDiscontinued(since=date(1998, 4, 1)))


def test_an_item_that_was_never_delivered_cannot_be_discontinued_nor_named() -> None:
    given().when(DiscontinueItem(since=DAY)).then_refused("inventory.unknown")
    given().when(NameItem(name="Abba")).then_refused("inventory.unknown")


def test_an_item_gets_another_name_once() -> None:
    past = (DELIVERED, ItemNamed(name="Abba"))
    given(*past).when(NameItem(name="Abba")).then_nothing()
    given(*past).when(NameItem(name="Bach")).then(ItemNamed(name="Bach"))


@pytest.mark.parametrize("command", [ReleaseStock(order_id="o-2"), reserve("o-2", 7)])
def test_one_order_does_not_touch_the_reservation_of_another(command: InventoryCommand) -> None:
    item = DECIDER.initial
    for event in (DELIVERED, KEPT, *given(DELIVERED, KEPT).when(command).events):
        item = DECIDER.evolve(item, event)
    assert item.phase == "listed"
    assert item.reservations == {"o-1": 4}
