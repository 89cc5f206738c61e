"""Stock as sales sees it: pieces that arrive and leave, and what items are called."""

from shared.domain import Event


class StockReceived(Event):
    TYPE = "stock.received"

    quantity: int


class StockShipped(Event):
    TYPE = "stock.shipped"

    quantity: int


class ItemNamed(Event):
    TYPE = "stock.named"

    name: str
