"""The copies of tables: let go when they move away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiokafka import TopicPartition

from services.accounts.domain.decide import DECIDER
from services.accounts.topology import ACCOUNTS, COMMANDS, DEAD, EVENTS
from shared.kafka.transactions import TransactionAborted
from shared.streams.engine import Assignment, Engine
from shared.streams.processors import Aggregate
from shared.topology import Topology
from tests.faults.simulated import Broker, FakeOffsets, FakeReader, FakeStore

TOPOLOGY = Topology("accounts", (COMMANDS, EVENTS, DEAD), (ACCOUNTS,), partitions=2)
CHANGELOGS = [TOPOLOGY.changelog(table).name for table in TOPOLOGY.all_tables()]
SOURCES = [TOPOLOGY.parking.name, COMMANDS.name]


def test_a_worker_that_lost_its_membership_keeps_no_store_open() -> None:
    async def lose(engine: Engine, stores: dict[str, FakeStore]) -> None:
        assert [store.opened for store in stores.values()] == [{0, 1}, {0, 1}]
        await engine._begin_again(TransactionAborted("another generation", lost_membership=True))

    assert [store.opened for store in _with_engine(lose).values()] == [set(), set()]


def _with_engine(act: Callable[[Engine, dict[str, FakeStore]], Awaitable[None]]) -> dict[str, FakeStore]:
    """The stores of an engine that had taken two partitions over when this happened to it."""
    broker = Broker([*CHANGELOGS, *SOURCES], TOPOLOGY.partitions, random.Random(1))
    stores = {table.name: FakeStore(table.name) for table in TOPOLOGY.all_tables()}

    async def run() -> None:
        engine = Engine(
            TOPOLOGY,
            [Aggregate(DECIDER, table=ACCOUNTS, events=EVENTS)],
            stores=cast(Any, stores),
            reader=cast(Any, FakeReader(broker, broker.chance)),
            consumer=cast(Any, None),
            producer=cast(Any, None),
            offsets=cast(Any, FakeOffsets(broker)),
            alive=lambda: None,
            lease_s=10.0,
        )
        engine.assignment = _assignment(0, 1)
        await engine._take_over(engine.assignment)
        await act(engine, stores)

    asyncio.run(run())
    return stores


def _assignment(*partitions: int) -> Assignment:
    places = {TopicPartition(topic, partition) for topic in [*CHANGELOGS, *SOURCES] for partition in partitions}
    return Assignment(frozenset(places), frozenset(), b"member")
