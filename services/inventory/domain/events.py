"""What can have happened to an item. Quantities are pieces, greater than 0."""

from shared.es.message import Event
from shared.es.times import Day


class StockReceived(Event):
    TYPE = "stock.received"

    quantity: int


class StockReserved(Event):
    """The answer to ReserveStock: `quantity` pieces are kept for the order."""

    TYPE = "stock.reserved"

    order_id: str
    quantity: int


class ReservationRefused(Event):
    """The answer to ReserveStock: nothing is kept, and `code` says why. The quantity is the one asked for."""

    TYPE = "stock.reservation_refused"

    order_id: str
    quantity: int
    code: str


class StockReleased(Event):
    """What was kept for the order is for sale again."""

    TYPE = "stock.released"

    order_id: str
    quantity: int


class StockShipped(Event):
    """What was kept for the order has left."""

    TYPE = "stock.shipped"

    order_id: str
    quantity: int


class ItemDiscontinued(Event):
    TYPE = "stock.discontinued"

    since: Day


InventoryEvent = StockReceived | StockReserved | ReservationRefused | StockReleased | StockShipped | ItemDiscontinued
