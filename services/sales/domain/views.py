"""What is known of sales. Each view is made of sums, minima and maxima: the order of its events changes nothing."""

from typing import Self

from shared.es.state import State
from shared.es.times import Day


class Totals(State):
    orders: int = 0
    units: int = 0
    revenue_cents: int = 0

    def plus(self, units: int, revenue_cents: int) -> Self:
        """The same with one order more."""
        added = {
            "orders": self.orders + 1,
            "units": self.units + units,
            "revenue_cents": self.revenue_cents + revenue_cents,
        }
        return self.model_copy(update=added)


class DaySales(Totals):
    """`late` is what came after the grace: it is counted beside the day, whose own totals stay as they are."""

    late: Totals = Totals()


class Customer(State):
    """total_cents: of all orders. Days are those the orders were placed on."""

    orders: int
    total_cents: int
    first_order_on: Day
    last_order_on: Day
