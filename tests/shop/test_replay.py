"""Replayed from its first record, every topic gives the same rows and the same records, byte by byte.

It runs after the tests that kill workers: what they lost is missing here, what they did twice is too much.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from services.accounts import topology as accounts
from services.accounts.domain.decide import DECIDER as ACCOUNT
from services.inventory import topology as inventory
from services.inventory.processors import PROCESSORS as INVENTORY
from services.orders import topology as orders
from services.orders.processors import processors as orders_processors
from services.sales import topology as sales
from services.sales.processors import PROCESSORS as SALES
from shared.streams.processors import Aggregate, Processor
from shared.testing.conversation import Said, replayed
from shared.topology import Topic, Topology
from tests.shop.market import Market
from tests.waiting import eventually

pytestmark = pytest.mark.broker

PROCESSORS: list[tuple[Topology, Processor]] = [
    (accounts.TOPOLOGY, Aggregate(ACCOUNT, table=accounts.ACCOUNTS, events=accounts.EVENTS)),
    *((inventory.TOPOLOGY, processor) for processor in INVENTORY),
    *((orders.TOPOLOGY, processor) for processor in orders_processors(deadline_s=1.0)),
    *((sales.TOPOLOGY, processor) for processor in SALES),
]
ENDS = {"order.confirmed", "order.rejected", "order.cancelled"}
TOPOLOGIES = (accounts.TOPOLOGY, inventory.TOPOLOGY, orders.TOPOLOGY, sales.TOPOLOGY)
TABLES = [
    pytest.param(topology, processor, id=processor.table.name) for topology, processor in PROCESSORS if processor.table
]


@pytest.fixture(scope="module")
def settled(market: Market) -> Market:
    """Nothing is under way: every command that a replay sends was sent, every deadline has passed."""
    sku, customer, order = market.new("sku"), market.new("customer"), market.new("order")
    market.deliver(sku, 1)
    market.open_account(customer)
    market.place(order, customer, (sku, 1, 100))
    eventually(lambda: difference(market), lambda difference: not any(difference))
    return market


def difference(market: Market) -> tuple[Counter[tuple[str, bytes]], Counter[tuple[str, bytes]]]:
    """Records that a replay writes and the log lacks; records of the log that neither a replay nor a client wrote."""
    expected, found = Counter(written_again(market)), Counter(written(market))
    return expected - found, found - expected


def written_again(market: Market) -> Iterator[tuple[str, bytes]]:
    for _, processor in PROCESSORS:
        _, records = replayed(processor, market.records(processor.source.name))
        yield from ((record.topic, record.value or b"") for record in records)


def written(market: Market) -> Iterator[tuple[str, bytes]]:
    for topology in TOPOLOGIES:
        for topic in topology.topics:
            yield from ((topic.name, said.value) for said in market.records(topic.name) if not from_client(said))


def from_client(said: Said) -> bool:
    body = json.loads(said.value)
    return "command_id" in body and body["causation_id"] is None


def test_the_log_is_what_a_replay_would_write(settled: Market) -> None:
    assert difference(settled) == (Counter(), Counter())


def test_there_are_no_dead_letters(settled: Market) -> None:
    for topology in TOPOLOGIES:
        assert settled.records(topology.dead_letters.name) == []


def test_every_order_ended_once_and_stock_and_money_agree_with_the_ends(settled: Market) -> None:
    """No reservation and no hold outlives its order, whichever worker was killed in between."""
    told = settled.messages(orders.EVENTS.name)
    ends = Counter(each["aggregate_id"] for each in told if each["type"] in ENDS)
    assert ends == {each["aggregate_id"]: 1 for each in told if each["type"] == "order.placed"}
    confirmed = [each["data"] for each in told if each["type"] == "order.confirmed"]
    lines = [(order["customer_id"], line) for order in confirmed for line in order["lines"]]
    left, owed = Counter[str](), Counter[str]()
    for delivery in settled.messages(inventory.EVENTS.name):
        if delivery["type"] == "stock.received":
            left[delivery["aggregate_id"]] += delivery["data"]["quantity"]
    for customer, line in lines:
        left[line["sku"]] -= line["quantity"]
        owed[customer] += line["amount_cents"]
    items = states(settled, inventory.TOPOLOGY.changelog(inventory.ITEMS), "listed")
    assert {sku: (item["physical"], item["reservations"]) for sku, item in items.items()} == {
        sku: (pieces, {}) for sku, pieces in left.items()
    }
    customers = states(settled, accounts.TOPOLOGY.changelog(accounts.ACCOUNTS), "open")
    assert customers.keys() >= owed.keys()
    assert {name: (account["balance_cents"], account["held"]) for name, account in customers.items()} == {
        name: (owed[name], {}) for name in customers
    }


def states(market: Market, changelog: Topic, phase: str) -> dict[str, dict[str, Any]]:
    """The states of the live table's rows in this phase, by key."""
    found = {said.key.decode(): json.loads(said.value)["state"] for said in market.records(changelog.name)}
    return {key: state for key, state in found.items() if state["phase"] == phase}


@pytest.mark.parametrize(("topology", "processor"), TABLES)
def test_a_replay_gives_the_same_table(settled: Market, topology: Topology, processor: Processor) -> None:
    assert processor.table is not None
    changelog = settled.records(topology.changelog(processor.table).name)
    rows, _ = replayed(processor, settled.records(processor.source.name))
    assert rows == {said.key: said.value for said in changelog}
