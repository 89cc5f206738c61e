"""What can be asked of an item. Any 64-bit int is a quantity here; `decide` refuses one out of range."""

from shared.es.ids import Reference
from shared.es.message import Command, Int64
from shared.es.times import Day


class ReceiveStock(Command):
    """A delivery of `quantity` pieces; the first one lists the item."""

    TYPE = "stock.receive"

    quantity: Int64


class ReserveStock(Command):
    """Keep `quantity` pieces for an order of the day `ordered_on`. Answered by an event, never refused."""

    TYPE = "stock.reserve"

    order_id: Reference
    quantity: Int64
    ordered_on: Day


class ReleaseStock(Command):
    """Give back what is kept for the order, if anything is."""

    TYPE = "stock.release"

    order_id: Reference


class ShipStock(Command):
    """Send the order what is kept for it."""

    TYPE = "stock.ship"

    order_id: Reference


class DiscontinueItem(Command):
    """Sell the item to no order of the day `since` or later."""

    TYPE = "stock.discontinue"

    since: Day


InventoryCommand = ReceiveStock | ReserveStock | ReleaseStock | ShipStock | DiscontinueItem
