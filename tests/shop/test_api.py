"""The shop's services over HTTP: answers to odd requests, and lists."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.shop.market import NOON, Market, story_of
from tests.waiting import eventually

pytestmark = pytest.mark.broker

LINE = {"sku": "abba", "quantity": 1, "amount_cents": 100}
ORDER = {"customer_id": "ann", "lines": [LINE], "placed_at": NOON}


@pytest.mark.parametrize(
    "odd",
    [
        {"placed_at": 853057800},
        {"placed_at": "853057800"},
        {"placed_at": "1997-01-18T12:00:00+02:00"},
        {"placed_at": "1997-01-18"},
        {"customer_id": ""},
        {"lines": LINE},
        {"lines": [{**LINE, "quantity": "1"}]},
        {"lines": [{**LINE, "quantity": 2**63}]},
        {"lines": [{**LINE, "price": 1}]},
        {"discount": 1},
    ],
)
def test_a_malformed_order_is_refused(market: Market, odd: dict[str, object]) -> None:
    answer = market.try_to_post("orders", f"/orders/{market.new('order')}", {**ORDER, **odd})
    assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid")


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([], "order.no_lines"),
        ([LINE, LINE], "order.sku_repeated"),
        ([{**LINE, "quantity": 0}], "order.quantity_not_positive"),
        ([{**LINE, "amount_cents": -1}], "order.amount_out_of_range"),
    ],
)
def test_a_senseless_order_is_refused_with_its_code(market: Market, lines: list[object], code: str) -> None:
    answer = market.try_to_post("orders", f"/orders/{market.new('order')}", {**ORDER, "lines": lines})
    assert (answer.status_code, answer.json()["code"]) == (409, code)


def test_a_repeat_gets_the_first_answer_and_another_body_is_refused(market: Market) -> None:
    path, key = f"/orders/{market.new('order')}", market.new("key")
    first = market.post("orders", path, ORDER, key=key)
    assert market.post("orders", path, ORDER, key=key).json() == first.json()
    other = market.try_to_post("orders", path, {**ORDER, "lines": [{**LINE, "quantity": 2}]}, key=key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key.reused")
    assert market.try_to_get("orders", first.headers["location"]).json() == first.json()


@pytest.mark.parametrize(
    ("service", "path"),
    [
        ("inventory", "/items/abba/reservations"),
        ("inventory", "/items/abba/shipments"),
        ("accounts", "/accounts/ann/orders"),
        ("orders", "/orders/o-1/reservations"),
    ],
)
def test_commands_that_only_a_process_sends_have_no_route(market: Market, service: str, path: str) -> None:
    assert market.try_to_post(service, path, {}).status_code == 404


@pytest.mark.parametrize("path", ["/sales/days/today", "/sales/days/853057800000", "/sales/hours/sat-24"])
def test_an_invalid_window_is_422(market: Market, path: str) -> None:
    assert market.try_to_get("sales", path).status_code == 422


def test_orders_are_listed_by_customer_and_sales_by_revenue(market: Market) -> None:
    customer, dear, cheap = market.new("customer"), market.new("sku"), market.new("sku")
    market.open_account(customer)
    orders = [market.new("order") for _ in range(3)]
    for order, sku, cents in zip(orders, (cheap, dear, dear), (1, 1_000_000_00, 1_000_000_00), strict=True):
        market.deliver(sku, 1)
        market.place(order, customer, (sku, 1, cents))
    for order in orders:
        assert market.ended(order)["phase"] == "confirmed"
    listed = market.get("orders", f"/orders?order=customer_id&customer_id={customer}&complete=true")
    assert {item["order_id"] for item in listed["items"]} == set(orders)
    best = eventually(
        lambda: market.get("sales", "/sales/skus?order=-revenue_cents&limit=1")["items"],
        lambda items: bool(items) and items[0]["revenue_cents"] == 2_000_000_00,
    )
    assert best == [{"sku": dear, "orders": 2, "units": 2, "revenue_cents": 2_000_000_00}]
    eventually(
        lambda: market.get("sales", "/sales/customers?order=-total_cents&limit=1")["items"],
        lambda items: [item["customer_id"] for item in items] == [customer],
    )


def test_what_is_left_to_promise_follows_stock_and_orders(market: Market) -> None:
    """Of two services: the one's events by their own key, the other's under another."""
    sku, customer, order = market.new("sku"), market.new("customer"), market.new("order")
    market.deliver(sku, 70_005)
    market.open_account(customer)
    market.place(order, customer, (sku, 2, 100))
    assert market.ended(order)["phase"] == "confirmed"
    left = {"sku": sku, "on_hand": 70_003, "owed": 0, "to_promise": 70_003}
    eventually(lambda: market.get("sales", f"/sales/available/{sku}"), lambda found: found == left)
    listed = market.get("sales", "/sales/available?order=-to_promise&to_promise_min=70003&complete=true")
    assert listed["items"] == [left]


def test_an_orders_line_has_the_name_that_its_item_has_now(market: Market) -> None:
    sku, customer, order = market.new("sku"), market.new("customer"), market.new("order")
    market.deliver(sku, 5)
    market.open_account(customer)
    market.place(order, customer, (sku, 2, 100))
    assert market.ended(order)["phase"] == "confirmed"
    for name in (f"first of {sku}", f"now of {sku}"):
        market.post("inventory", f"/items/{sku}/name", {"name": name})
        (line,) = eventually(lambda name=name: market.get("sales", f"/sales/lines?name={name}")["items"], bool)  # type: ignore[misc]
        assert (line["order_id"], line["sku"], line["quantity"]) == (order, sku, 2)
    assert market.get("sales", f"/sales/lines?name=first of {sku}")["items"] == []


def test_an_item_is_listed_and_streamed_once_though_each_partition_has_it(market: Market) -> None:
    sku = market.new("sku")
    market.deliver(sku, 1)
    market.post("inventory", f"/items/{sku}/name", {"name": "one"})
    eventually(lambda: market.get("sales", f"/sales/items/{sku}").get("name") == "one")
    items = eventually(
        lambda: [each for each in market.get("sales", "/sales/items?limit=500")["items"] if each["sku"] == sku]
    )
    assert items == [{"sku": sku, "name": "one"}]
    (url,) = market.stack.urls("sales")
    with httpx.stream("GET", f"{url}/changes/items", timeout=60.0) as stream:
        first = next(stream.iter_text())
    assert re.search(r"^id: sales-items-changelog:0@\d+$", first, re.MULTILINE)


def test_an_orders_story_begins_with_the_key_it_was_placed_with(market: Market) -> None:
    order = market.new("order")
    market.place(order, "nobody", ("abba", 1, 1))
    outcome = market.try_to_get("orders", f"/orders/{order}/commands/{story_of(order)}")
    assert outcome.json() == {"command_id": story_of(order), "sequence": 1}
