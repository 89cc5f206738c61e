"""What open orders wait for, in sentences."""

from datetime import timedelta

import pytest

from services.orders.domain.events import (
    ChargeOverdue,
    Line,
    LineReserved,
    OrderCancelled,
    OrderConfirmed,
    OrderEvent,
    OrderPlaced,
    OrderRejected,
)
from services.orders.domain.views import Open
from services.orders.projections import PROJECTIONS
from services.orders.topology import OPEN
from shared.testing.scenario import NOON, ViewScenario, happened

open_order = ViewScenario(PROJECTIONS, OPEN)

LINES = (Line(sku="mug", quantity=1, amount_cents=500), Line(sku="pen", quantity=2, amount_cents=100))
LATER = NOON + timedelta(seconds=3)
PLACED = happened(OrderPlaced(customer_id="ann", lines=LINES, placed_at=NOON))
MUG = happened(LineReserved(sku="mug", asked=("pen",), customer_id="ann", total_cents=600), sequence=2)
PEN = happened(LineReserved(sku="pen", asked=(), customer_id="ann", total_cents=600), sequence=3, occurred_at=LATER)
OVERDUE = happened(ChargeOverdue(attempt=2, customer_id="ann", total_cents=600), sequence=4)


def test_an_order_waits_for_stock_until_its_last_line_is_reserved() -> None:
    open_order("o-1", PLACED, MUG).shows(Open(customer_id="ann", waits_for="stock", since=NOON))


def test_it_then_waits_for_payment_however_often_it_asks() -> None:
    open_order("o-1", PLACED, MUG, PEN, OVERDUE).shows(Open(customer_id="ann", waits_for="payment", since=LATER))


@pytest.mark.parametrize(
    "end",
    [
        OrderConfirmed(customer_id="ann", lines=LINES, placed_at=NOON),
        OrderRejected(code="account.unknown", customer_id="ann", reserved=("mug", "pen"), charged=True),
        OrderCancelled(customer_id="ann", reserved=("mug", "pen"), charged=True),
    ],
    ids=lambda end: end.TYPE,
)
def test_an_order_that_has_ended_has_no_row(end: OrderEvent) -> None:
    open_order("o-1", PLACED, MUG, PEN, happened(end, sequence=4)).shows(None)
