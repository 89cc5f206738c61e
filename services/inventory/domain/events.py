"""The events of an item. Quantities are pieces, greater than 0."""

from shared.domain import Day, Event


class StockReceived(Event):
    TYPE = "stock.received"

    quantity: int


class StockReserved(Event):
    """The answer to ReserveStock: `quantity` pieces are reserved for the order."""

    TYPE = "stock.reserved"

    order_id: str
    quantity: int


class ReservationRefused(Event):
    """The answer to ReserveStock: nothing is reserved, and `code` says why. `quantity` is what was asked for."""

    TYPE = "stock.reservation_refused"

    order_id: str
    quantity: int
    code: str


class StockReleased(Event):
    """What was reserved for the order is available again."""

    TYPE = "stock.released"

    order_id: str
    quantity: int


class StockShipped(Event):
    """What was reserved for the order has left the shelf."""

    TYPE = "stock.shipped"

    order_id: str
    quantity: int


class ItemDiscontinued(Event):
    TYPE = "stock.discontinued"

    since: Day


class ItemNamed(Event):
    """What the item is called from now on, wherever it is shown."""

    TYPE = "stock.named"

    name: str


InventoryEvent = (
    StockReceived | StockReserved | ReservationRefused | StockReleased | StockShipped | ItemDiscontinued | ItemNamed
)
