"""Many orders compete for the last pieces and the last of the credit while workers are killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.orders.topology import EVENTS
from tests.shop.market import Market
from tests.waiting import eventually

pytestmark = pytest.mark.broker

ORDERS = 60
PIECES = 20
CREDIT_CENTS = 400
PRICE_CENTS = 100
CUSTOMERS = 4
CLIENTS = 6

ENDS = {"order.confirmed", "order.rejected", "order.cancelled"}


def nobody(_: Market) -> None:
    pass


def kill_orders(market: Market) -> None:
    market.workers("orders")[0].kill()
    market.workers("orders")[0].start()


def kill_everybody_else(market: Market) -> None:
    for service in ("inventory", "accounts", "sales"):
        for worker in market.workers(service):
            worker.kill()
            worker.spawn()


def balance(market: Market, customer: str) -> int:
    """What the customer owes once no order is under way."""
    found = eventually(lambda: market.account(customer), lambda account: account["held_cents"] == 0)
    return int(found["balance_cents"])


@pytest.mark.parametrize(
    "disturb",
    [
        nobody,
        *(pytest.param(kill, marks=pytest.mark.long) for kill in (kill_orders, kill_everybody_else)),  # as in faults
    ],
)
def test_the_last_pieces_are_sold_once_and_no_credit_is_exceeded(
    market: Market, disturb: Callable[[Market], None]
) -> None:
    """60 orders for 20 pieces, with credit for 16: each order ends once; stock and money agree with the ends."""
    sku = market.new("sku")
    market.deliver(sku, PIECES)
    customers = [market.new("customer") for _ in range(CUSTOMERS)]
    for customer in customers:
        market.open_account(customer, credit_limit_cents=CREDIT_CENTS)
    orders = [market.new("order") for _ in range(ORDERS)]

    def place(number: int) -> None:
        market.place(orders[number], customers[number % CUSTOMERS], (sku, 1, PRICE_CENTS))
        if number == ORDERS // 2:
            disturb(market)

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(place, range(ORDERS)))
    ended = {order: market.ended(order) for order in orders}
    confirmed = [order for order in ended.values() if order["phase"] == "confirmed"]
    assert confirmed
    codes = {order["code"] for order in ended.values() if order["phase"] == "rejected"}
    late = set() if disturb is nobody else {"order.timed_out"}
    assert codes <= {"inventory.out_of_stock", "account.credit_exceeded"} | late
    item = eventually(lambda: market.item(sku), lambda item: item["reserved"] == 0)
    assert item["physical"] == PIECES - len(confirmed)
    spent = Counter(order["customer_id"] for order in confirmed)
    for customer in customers:
        assert balance(market, customer) == spent[customer] * PRICE_CENTS <= CREDIT_CENTS
    ends = Counter(each["aggregate_id"] for each in market.messages(EVENTS.name) if each["type"] in ENDS)
    assert {order: ends[order] for order in orders} == dict.fromkeys(orders, 1)
