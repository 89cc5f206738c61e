"""An order's way through five services, and every way it can end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent

from services.accounts import topology as accounts
from services.inventory import topology as inventory
from services.inventory.domain.decide import MAX_RESERVATIONS
from services.inventory.domain.errors import TooManyReservations
from services.orders import topology as orders
from services.sales import topology as sales
from shared.dev.stack import Stack
from tests.conftest import WORKER_SETTINGS
from tests.public_events import read_events
from tests.shop.conftest import WORKERS
from tests.shop.market import Market, story_of
from tests.waiting import eventually

pytestmark = pytest.mark.broker

FULL_S = 600.0  # thousands of orders take seconds on a quiet machine


@pytest.fixture
def sku(market: Market) -> str:
    """An item with 5 pieces."""
    name = market.new("sku")
    market.deliver(name, 5)
    return name


@pytest.fixture
def customer(market: Market) -> str:
    """A customer whose orders may cost up to 50 dollars each."""
    name = market.new("customer")
    market.open_account(name, order_limit_cents=5000)
    return name


@pytest.fixture
def order(market: Market) -> str:
    return market.new("order")


def published(market: Market) -> Sequence[BaseCloudEvent]:
    return read_events(market.stack.bootstrap, orders.PUBLIC.name)


def untouched(market: Market, sku: str, customer: str) -> None:
    """Waits until nothing is reserved, shipped, held or owed."""
    eventually(lambda: market.item(sku), lambda item: (item["physical"], item["reserved"]) == (5, 0))
    eventually(
        lambda: market.account(customer), lambda account: (account["balance_cents"], account["held_cents"]) == (0, 0)
    )


def test_a_confirmed_order_is_shipped_owed_and_counted(market: Market, sku: str, customer: str, order: str) -> None:
    other = market.new("sku")
    market.deliver(other, 1)
    market.place(order, customer, (sku, 2, 2000), (other, 1, 999), placed_at="1997-02-01T09:30:00Z")
    assert market.ended(order)["phase"] == "confirmed"
    (told,) = eventually(
        lambda: [each for each in published(market) if each.get_subject() == order], lambda found: len(found) == 1
    )
    assert (told.get_source(), told.get_type()) == ("/orders", "order.confirmed.v1")
    assert told.get_data() == {
        "customer_id": customer,
        "skus": [sku, other],
        "total_cents": 2999,
        "placed_at": "1997-02-01T09:30:00Z",
    }
    eventually(lambda: market.item(sku), lambda item: (item["physical"], item["reserved"]) == (3, 0))
    eventually(
        lambda: market.account(customer), lambda found: (found["balance_cents"], found["held_cents"]) == (2999, 0)
    )
    eventually(
        lambda: market.get("sales", f"/sales/skus/{sku}"),
        lambda found: found == {"sku": sku, "orders": 1, "units": 2, "revenue_cents": 2000},
    )
    assert eventually(
        lambda: market.get("sales", f"/sales/customers/{customer}?as_of=1997-03-01"), lambda found: "rfm" in found
    ) == {
        "customer_id": customer,
        "orders": 1,
        "total_cents": 2999,
        "first_order_on": "1997-02-01",
        "last_order_on": "1997-02-01",
        "rfm": {"as_of": "1997-03-01", "recency": 5, "frequency": 1, "monetary": 2},
    }


def test_a_delivery_sent_again_after_many_orders_counts_once(market: Market, customer: str) -> None:
    """Each order sends the item two commands."""
    many = 17
    sku, key = market.new("sku"), market.new("delivery")
    deliver = partial(market.post, "inventory", f"/items/{sku}/deliveries", {"quantity": 100}, key=key)
    first = deliver()
    for order in [market.new("order") for _ in range(many)]:
        market.place(order, customer, (sku, 1, 1))
    eventually(lambda: market.item(sku), lambda item: item["physical"] == 100 - many)
    assert deliver().json() == first.json()
    assert market.item(sku)["physical"] == 100 - many


def test_an_order_without_stock_is_rejected(market: Market, sku: str, customer: str, order: str) -> None:
    scarce = market.new("sku")
    market.deliver(scarce, 1)
    market.place(order, customer, (sku, 5, 1000), (scarce, 2, 1000))
    found = market.ended(order)
    assert (found["phase"], found["code"]) == ("rejected", "inventory.out_of_stock")
    untouched(market, sku, customer)


def test_an_order_of_a_discontinued_item_is_rejected(market: Market, sku: str, customer: str, order: str) -> None:
    market.post("inventory", f"/items/{sku}/discontinuation", {"since": "1998-03-01"})
    earlier = market.new("order")
    market.place(earlier, customer, (sku, 1, 0), placed_at="1998-02-28T23:59:59Z")
    market.place(order, customer, (sku, 1, 0), placed_at="1998-03-01T00:00:00Z")
    assert market.ended(earlier)["phase"] == "confirmed"
    assert market.ended(order)["code"] == "inventory.discontinued"


def test_an_order_without_credit_is_rejected(market: Market, sku: str, customer: str, order: str) -> None:
    market.place(order, customer, (sku, 5, 5001))
    found = market.ended(order)
    assert (found["phase"], found["code"]) == ("rejected", "account.order_limit_exceeded")
    untouched(market, sku, customer)


def test_an_order_of_a_customer_without_an_account_is_rejected(market: Market, sku: str, order: str) -> None:
    market.place(order, market.new("stranger"), (sku, 1, 1))
    assert market.ended(order)["code"] == "account.unknown"


@pytest.mark.long  # in short, a step without an answer, below
def test_an_order_is_cancelled_while_inventory_is_away(market: Market, sku: str, customer: str, order: str) -> None:
    with market.without("inventory"):
        market.place(order, customer, (sku, 5, 1000))
        market.cancel(order)
        assert market.order(order)["phase"] == "cancelled"
    eventually(
        lambda: [each["type"] for each in market.messages(inventory.EVENTS.name) if each["aggregate_id"] == sku],
        lambda found: found == ["stock.received", "stock.reserved", "stock.released"],
    )
    untouched(market, sku, customer)


@pytest.mark.long  # the limit is proved by a unit test, what outgrows a topic by test_refused_records
def test_an_item_that_thousands_of_orders_wait_for_takes_no_more_and_all_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_DEADLINE_S", "600")
    with Stack(tmp_path, WORKERS, settings=WORKER_SETTINGS) as stack, Market(stack) as market:
        wanted, other = market.new("sku"), market.new("sku")
        market.deliver(wanted, 10_000)
        market.deliver(other, 5)
        customers = [market.new("customer") for _ in range(5)]
        for customer in customers:
            market.open_account(customer)
        with market.without("accounts"):
            placed = [(market.new("order"), customers[number % 5], wanted) for number in range(MAX_RESERVATIONS + 20)]
            market.place_at_once(placed)
            eventually(lambda: market.item(wanted), lambda item: item["reserved"] == MAX_RESERVATIONS, FULL_S)
            eventually(lambda: _codes(market), lambda codes: codes == [TooManyReservations.code] * 20, FULL_S)
            market.place(market.new("order"), customers[0], (other, 1, 1))
            eventually(lambda: market.item(other), lambda item: item["reserved"] == 1)
        left = 10_000 - MAX_RESERVATIONS
        eventually(lambda: market.item(wanted), lambda item: (item["physical"], item["reserved"]) == (left, 0), FULL_S)
        assert market.item(other)["physical"] == 4
        assert all(worker.running for worker in stack.workers)


def _codes(market: Market) -> list[str]:
    """Of the orders that are rejected."""
    return [each["data"]["code"] for each in market.messages(orders.EVENTS.name) if each["type"] == "order.rejected"]


def test_a_step_without_an_answer_is_retried_and_finally_compensated(
    market: Market, sku: str, customer: str, order: str
) -> None:
    with market.without("accounts"):
        market.place(order, customer, (sku, 5, 1000))
        waiting = market.get("orders", f"/open-orders/{order}?until=waits_for:payment&wait=10")
        assert (waiting["customer_id"], waiting["waits_for"]) == (customer, "payment")
        found = market.ended(order)
        assert (found["phase"], found["code"]) == ("rejected", "order.timed_out")
        eventually(lambda: market.try_to_get("orders", f"/open-orders/{order}").status_code, lambda code: code == 404)
        eventually(lambda: market.item(sku), lambda item: (item["physical"], item["reserved"]) == (5, 0))
    eventually(
        lambda: [each["type"] for each in told(market, accounts.EVENTS.name, order)],
        lambda found: found == ["account.order_charged", "account.order_refunded"],
    )
    untouched(market, sku, customer)
    types = [each["type"] for each in market.messages(orders.EVENTS.name) if each["aggregate_id"] == order]
    assert types[:2] == ["order.placed", "order.line_reserved"]
    assert types[-1] == "order.rejected"
    assert set(types[2:-1]) == {"order.charge_overdue"}
    asked = [each["type"] for each in told(market, accounts.COMMANDS.name, order)]
    assert asked == ["account.charge_order"] * (asked.count("account.charge_order")) + ["account.refund_order"]
    assert asked.count("account.charge_order") > 1
    answered = [each["type"] for each in told(market, accounts.EVENTS.name, order)]
    assert answered == ["account.order_charged", "account.order_refunded"]


def told(market: Market, topic: str, order: str) -> list[dict[str, Any]]:
    """The topic's messages with the order's correlation id."""
    return [each for each in market.messages(topic) if each["correlation_id"] == story_of(order)]


@pytest.mark.long  # in short, stories
def test_an_order_can_be_traced_through_all_topics(market: Market, sku: str, customer: str, order: str) -> None:
    market.place(order, customer, (sku, 1, 100))
    market.ended(order)
    eventually(lambda: told(market, sales.BY_CUSTOMER.name, order), lambda found: len(found) == 1)
    for topic in (accounts.EVENTS, inventory.EVENTS):
        eventually(partial(told, market, topic.name, order), lambda found: len(found) == 2)
    topics = (orders, inventory, accounts)
    story = [each for at in topics for topic in (at.COMMANDS, at.EVENTS) for each in told(market, topic.name, order)]
    types = {each["type"] for each in story}
    assert types >= {
        *("order.place", "order.placed", "stock.reserve", "stock.reserved", "order.record_reservation"),
        *("order.line_reserved", "account.charge_order", "account.order_charged", "order.record_charge"),
        *("order.confirmed", "stock.ship", "stock.shipped", "account.settle_order", "account.order_settled"),
    }
    ids = [each.get("event_id") or each["command_id"] for each in story]
    assert len(set(ids)) == len(ids)
    causes = {each["causation_id"] for each in story}
    assert causes <= {*ids, None}
    assert [each["type"] for each in story if each["causation_id"] is None] == ["order.place"]
    for topic in (sales.BY_SKU, sales.BY_DAY, sales.BY_HOUR, sales.BY_CUSTOMER, sales.BY_LINE):
        assert [each["type"] for each in told(market, topic.name, order)] == ["order.confirmed"]


def test_a_late_order_is_counted_beside_its_day(market: Market, sku: str, customer: str) -> None:
    """An order told of within three days of the day's end changes the day; a later one is counted as late."""
    day = "1999-12-31"
    for told_at in ("1999-12-31T12:00:00Z", "2000-01-03T23:59:59Z", "2000-01-04T00:00:01Z"):
        market.place(market.new("order"), customer, (sku, 1, 100), placed_at=f"{day}T12:00:00Z", told_at=told_at)
    found = eventually(
        lambda: market.get("sales", f"/sales/days/{day}"), lambda found: found.get("late", {}).get("orders") == 1
    )
    found = eventually(lambda: market.get("sales", f"/sales/days/{day}"), lambda found: found["orders"] == 2)
    assert found == {
        "day": day,
        "orders": 2,
        "units": 2,
        "revenue_cents": 200,
        "late": {"orders": 1, "units": 1, "revenue_cents": 100},
    }
