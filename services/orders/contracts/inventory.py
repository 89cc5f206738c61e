"""Inventory as orders sees it: the commands that it sends there, and the fields of the answers that it needs."""

from shared.domain import Command, Day, Event


class ReserveStock(Command):
    TYPE = "stock.reserve"

    order_id: str
    quantity: int
    ordered_on: Day


class ReleaseStock(Command):
    TYPE = "stock.release"

    order_id: str


class ShipStock(Command):
    TYPE = "stock.ship"

    order_id: str


class StockReserved(Event):
    TYPE = "stock.reserved"

    order_id: str


class ReservationRefused(Event):
    TYPE = "stock.reservation_refused"

    order_id: str
    code: str


InventoryCommand = ReserveStock | ReleaseStock | ShipStock
InventoryAnswer = StockReserved | ReservationRefused
