"""The views of sales. Each is made of sums, minima and maxima, so the order of its events makes no difference."""

from typing import Self

from shared.domain import Day, State


class Totals(State):
    orders: int = 0
    units: int = 0
    revenue_cents: int = 0

    def plus(self, units: int, revenue_cents: int) -> Self:
        """The totals with one more order."""
        added = {
            "orders": self.orders + 1,
            "units": self.units + units,
            "revenue_cents": self.revenue_cents + revenue_cents,
        }
        return self.model_copy(update=added)


class DaySales(Totals):
    """`late` counts the orders reported after the grace period; the day's own totals do not include them."""

    late: Totals = Totals()


class Stock(State):
    """Pieces that have arrived at the shelf, and left it."""

    received: int = 0
    shipped: int = 0


class Available(State):
    """Pieces. on_hand: on the shelf. owed: of confirmed orders and not shipped yet. to_promise: for further orders.

    What an order took may be read after the shipment of it, so for a moment `owed` may be too low.
    """

    on_hand: int
    owed: int
    to_promise: int


class Item(State):
    name: str


class Ordered(State):
    """A line of a confirmed order."""

    order_id: str
    sku: str
    quantity: int
    amount_cents: int


class NamedLine(Ordered):
    """name: of the item, as it is called now; empty if it never got one."""

    name: str


class Customer(State):
    """total_cents: of all orders. The days are those on which orders were placed."""

    orders: int
    total_cents: int
    first_order_on: Day
    last_order_on: Day
