"""The commands of an item. A quantity may be any 64-bit int here; `decide` refuses one that is out of range."""

from typing import Annotated

from pydantic import Field

from shared.domain import Command, Day, Int64, Reference


class ReceiveStock(Command):
    """A delivery of `quantity` pieces; the first one lists the item."""

    TYPE = "stock.receive"

    quantity: Int64


class ReserveStock(Command):
    """Reserve `quantity` pieces for an order placed on `ordered_on`. Answered by an event, never refused."""

    TYPE = "stock.reserve"

    order_id: Reference
    quantity: Int64
    ordered_on: Day


class ReleaseStock(Command):
    """Release what is reserved for the order, if anything is."""

    TYPE = "stock.release"

    order_id: Reference


class ShipStock(Command):
    """Ship what is reserved for the order."""

    TYPE = "stock.ship"

    order_id: Reference


class DiscontinueItem(Command):
    """Stop selling the item to orders placed on `since` or later."""

    TYPE = "stock.discontinue"

    since: Day


class NameItem(Command):
    TYPE = "stock.name"

    name: Annotated[str, Field(min_length=1, max_length=200)]


InventoryCommand = ReceiveStock | ReserveStock | ReleaseStock | ShipStock | DiscontinueItem | NameItem
