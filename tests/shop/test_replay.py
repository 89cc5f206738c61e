"""Replayed from its first record, every topic gives the same rows and the same records, byte by byte.

It runs after the tests that kill workers: what they lost is missing here, what they did twice is too much.
"""

from __future__ import annotations

from collections import Counter

import pytest

from shared.engine.processors import Processor
from shared.topology.topics import Topology
from tests.shop.books import TABLES, Told, check_ends, check_limits, check_table, dead_letters, difference, settled
from tests.shop.market import Market, said_by_topic

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def log(market: Market) -> Told:
    """Nothing is under way: every command that a replay sends was sent, every deadline has passed."""
    sku, customer, order = market.new("sku"), market.new("customer"), market.new("order")
    market.deliver(sku, 1)
    market.open_account(customer)
    market.place(order, customer, (sku, 1, 100))
    return said_by_topic(settled(market.stack.bootstrap))


def test_the_log_is_what_a_replay_would_write(log: Told) -> None:
    assert difference(log) == (Counter(), Counter())


def test_there_are_no_dead_letters(log: Told) -> None:
    assert dead_letters(log) == []


def test_every_order_ended_once_and_stock_and_money_agree_with_the_ends(log: Told) -> None:
    check_ends(log)


def test_no_row_ever_had_too_much_reserved_or_owed(log: Told) -> None:
    check_limits(log)


@pytest.mark.parametrize(("topology", "processor"), [pytest.param(*each, id=each[1].name) for each in TABLES])
def test_a_replay_gives_the_same_table(log: Told, topology: Topology, processor: Processor) -> None:
    check_table(log, topology, processor)
