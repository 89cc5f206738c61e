"""Which commands an item accepts, and which events follow."""

from typing import assert_never, get_args

from services.inventory.domain.commands import (
    DiscontinueItem,
    InventoryCommand,
    NameItem,
    ReceiveStock,
    ReleaseStock,
    ReserveStock,
    ShipStock,
)
from services.inventory.domain.errors import (
    Discontinued,
    InventoryError,
    NotReserved,
    OutOfStock,
    QuantityNotPositive,
    QuantityTooLarge,
    TooManyReservations,
    UnknownItem,
)
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
from services.inventory.domain.state import INITIAL, Item, Listed, Unlisted, evolve
from shared.domain import Decider

MAX_QUANTITY = 1_000_000
MAX_RESERVATIONS = 2_200  # a row, with ids of any kind, has to fit into a record of 1 MiB


def decide(command: InventoryCommand, item: Item) -> list[InventoryEvent]:
    """The events that follow from `command`; an empty list means that nothing changes. Raises InventoryError."""
    match command, item:
        case ReserveStock(order_id=order_id), Listed(reservations=kept) if order_id in kept:
            return []
        case ReserveStock(), _:
            return [_answer(command, item)]
        case ShipStock(order_id=order_id), Listed(reservations=kept) if order_id in kept:
            return [StockShipped(order_id=order_id, quantity=kept[order_id])]
        case ShipStock(order_id=order_id), _:
            raise NotReserved(f"ShipStock refused: nothing is reserved for order {order_id}")
        case ReleaseStock(order_id=order_id), Listed(reservations=kept) if order_id in kept:
            return [StockReleased(order_id=order_id, quantity=kept[order_id])]
        case ReleaseStock(), _:
            return []
        case ReceiveStock(quantity=quantity), _:
            return [StockReceived(quantity=_checked(quantity))]
        case DiscontinueItem() | NameItem(), Unlisted():
            raise UnknownItem(f"{type(command).__name__} refused: the item was never delivered")
        case DiscontinueItem(since=since), Listed(discontinued_since=known):
            return [] if since == known else [ItemDiscontinued(since=since)]
        case NameItem(name=name), Listed(name=present):
            return [] if name == present else [ItemNamed(name=name)]
        case _:
            assert_never(command)


def _answer(command: ReserveStock, item: Item) -> StockReserved | ReservationRefused:
    """A process waits for this answer, so a refusal is an event as well."""
    order_id, quantity = command.order_id, command.quantity
    try:
        _check_for_sale(command, item)
    except InventoryError as refusal:
        return ReservationRefused(order_id=order_id, quantity=quantity, code=refusal.code)
    return StockReserved(order_id=order_id, quantity=quantity)


def _check_for_sale(command: ReserveStock, item: Item) -> None:
    quantity = _checked(command.quantity)
    if isinstance(item, Unlisted):
        raise UnknownItem("the item was never delivered")
    since = item.discontinued_since
    if since is not None and command.ordered_on >= since:
        raise Discontinued(f"discontinued since {since}")
    if quantity > item.available:
        raise OutOfStock(f"{quantity} pieces asked for, {item.available} available")
    if len(item.reservations) >= MAX_RESERVATIONS:
        raise TooManyReservations(f"{MAX_RESERVATIONS} orders have pieces reserved already")


def _checked(quantity: int) -> int:
    if quantity <= 0:
        raise QuantityNotPositive(f"{quantity} pieces refused: a quantity is at least 1")
    if quantity > MAX_QUANTITY:
        raise QuantityTooLarge(f"a quantity is at most {MAX_QUANTITY} pieces")
    return quantity


DECIDER: Decider[InventoryCommand, InventoryEvent, Item] = Decider(
    decide=decide,
    evolve=evolve,
    initial=INITIAL,
    commands=get_args(InventoryCommand),
    events=get_args(InventoryEvent),
    state=Item,
)
