"""Stock as sales sees it: pieces that arrive and leave."""

from shared.domain import Event


class StockReceived(Event):
    TYPE = "stock.received"

    quantity: int


class StockShipped(Event):
    TYPE = "stock.shipped"

    quantity: int
