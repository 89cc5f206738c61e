"""An item is unlisted until its first delivery; then it has pieces, some of them reserved for orders."""

from collections.abc import Mapping
from typing import Annotated, Literal, assert_never

from pydantic import Field

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
from shared.domain import Day, State


class Unlisted(State):
    phase: Literal["unlisted"] = "unlisted"


class Listed(State):
    """0 ≤ reserved ≤ physical. `reservations`: pieces by order, `reserved` their sum."""

    phase: Literal["listed"] = "listed"
    physical: int = 0
    reserved: int = 0
    reservations: Mapping[str, int] = {}
    discontinued_since: Day | None = None
    name: str = ""

    @property
    def available(self) -> int:
        return self.physical - self.reserved


Item = Annotated[Unlisted | Listed, Field(discriminator="phase")]

INITIAL: Item = Unlisted()


def evolve(item: Item, event: InventoryEvent) -> Item:
    """The item after `event`."""
    match event:
        case StockReserved(order_id=order_id, quantity=quantity):
            return _kept(_listed(item), order_id, quantity)
        case StockReleased(order_id=order_id):
            return _without(_listed(item), order_id)
        case StockShipped(order_id=order_id, quantity=quantity):
            return _moved(_without(_listed(item), order_id), -quantity)
        case StockReceived(quantity=quantity):
            return _moved(_listed(item), quantity)
        case ItemDiscontinued(since=since):
            return _listed(item).model_copy(update={"discontinued_since": since})
        case ItemNamed(name=name):
            return _listed(item).model_copy(update={"name": name})
        case ReservationRefused():
            return item
        case _:
            assert_never(event)


def _listed(item: Item) -> Listed:
    return item if isinstance(item, Listed) else Listed()


def _moved(item: Listed, quantity: int) -> Listed:
    return item.model_copy(update={"physical": item.physical + quantity})


def _kept(item: Listed, order_id: str, quantity: int) -> Listed:
    reservations = {**item.reservations, order_id: quantity}
    return item.model_copy(update={"reserved": item.reserved + quantity, "reservations": reservations})


def _without(item: Listed, order_id: str) -> Listed:
    reservations = dict(item.reservations)
    quantity = reservations.pop(order_id, 0)
    return item.model_copy(update={"reserved": item.reserved - quantity, "reservations": reservations})
