"""How good a customer is: recency, frequency and monetary value, each scored from 1 to 5, best 5.

The marks are fixed and not quintiles of all customers, so a score does not depend on other customers.
"""

from datetime import date
from typing import NamedTuple

from services.sales.domain.views import Customer

RECENCY_DAYS = (30, 90, 180, 365)
FREQUENCY_ORDERS = (2, 3, 5, 10)
MONETARY_CENTS = (25_00, 50_00, 100_00, 250_00)


class Rfm(NamedTuple):
    recency: int
    frequency: int
    monetary: int


def score(customer: Customer, as_of: date) -> Rfm:
    """The customer's score on a day; orders after that day still count."""
    days = (as_of - customer.last_order_on).days
    return Rfm(
        recency=5 - sum(days > mark for mark in RECENCY_DAYS),
        frequency=1 + sum(customer.orders >= mark for mark in FREQUENCY_ORDERS),
        monetary=1 + sum(customer.total_cents >= mark for mark in MONETARY_CENTS),
    )
