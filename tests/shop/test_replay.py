"""Played again from its first record, every topic gives the same rows and the same records, byte by byte.

It runs behind the tests that kill workers: whatever they lost or did twice would be missing or too much here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

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
from shared.topology import Topology
from tests.shop.market import Market, eventually

pytestmark = pytest.mark.broker

PROCESSORS: list[tuple[Topology, Processor]] = [
    (accounts.TOPOLOGY, Aggregate(ACCOUNT, table=accounts.ACCOUNTS, events=accounts.EVENTS)),
    *((inventory.TOPOLOGY, processor) for processor in INVENTORY),
    *((orders.TOPOLOGY, processor) for processor in orders_processors(deadline_s=1.0)),
    *((sales.TOPOLOGY, processor) for processor in SALES),
]
TOPOLOGIES = (accounts.TOPOLOGY, inventory.TOPOLOGY, orders.TOPOLOGY, sales.TOPOLOGY)
TABLES = [
    pytest.param(topology, processor, id=processor.table.name) for topology, processor in PROCESSORS if processor.table
]


@pytest.fixture(scope="module")
def settled(market: Market) -> Market:
    """Nothing is under way: every command that a replay sends was sent, every deadline is over."""
    sku, customer, order = market.new("sku"), market.new("customer"), market.new("order")
    market.deliver(sku, 1)
    market.open_account(customer)
    market.place(order, customer, (sku, 1, 100))
    eventually(lambda: difference(market), lambda difference: not any(difference))
    return market


def difference(market: Market) -> tuple[Counter[tuple[str, bytes]], Counter[tuple[str, bytes]]]:
    """What a replay writes and the log lacks, and what the log has beyond that and what clients sent."""
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


def test_nothing_is_a_dead_letter(settled: Market) -> None:
    for topology in TOPOLOGIES:
        assert settled.records(f"{topology.service}.dead.v1") == []


@pytest.mark.parametrize(("topology", "processor"), TABLES)
def test_a_replay_gives_the_same_table(settled: Market, topology: Topology, processor: Processor) -> None:
    assert processor.table is not None
    changelog = settled.records(topology.changelog(processor.table).name)
    rows, _ = replayed(processor, settled.records(processor.source.name))
    assert rows == {said.key: said.value for said in changelog}
