"""The engine moves past transaction markers and aborted records in each partition, however busy the others are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from shared.engine.engine import Engine
from shared.engine.guards import STANDSTILL_S, Watchdog
from shared.engine.membership import Assignment
from shared.kafka.murmur2 import partition_of
from shared.kafka.transactions import Record
from shared.runtime.positions import Place
from shared.topology.topics import Topic, Topology
from tests.engine.test_turns import Noting
from tests.faults.simulated import Broker, FakeOffsets, FakeReader, FakeStore

FACTS = Topic("shop.events.v1")
SHOP = Topology("shop", (FACTS,), partitions=2)
IDLE, BUSY = (Place(FACTS.name, partition) for partition in range(2))
KEYS = {partition_of(key, 2): key for key in (b"a", b"b", b"c", b"d")}
A_FEW = 20


class Committing:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def forget_pending(self, _partitions: object, _member: bytes) -> None: ...

    def written_ends(self, places: Iterable[Place]) -> Mapping[Place, int]:
        """Its marker comes later, as a broker's may."""
        written = {place: len(self._broker.slots[place]) for place in places}
        for place in written:
            append(self._broker, place, "open")
        return written

    def send(self, records: Sequence[Record]) -> None:
        self._written = {Place(record.topic, record.partition): 0 for record in records}

    def commit(self, offsets: Mapping[Place, int], _member: bytes) -> Mapping[Place, int]:
        self._broker.committed |= offsets
        return self._written


def with_engine(act: Callable[[Engine, Broker], Awaitable[None]]) -> None:
    """Runs `act` on an engine that has two partitions and has just committed."""
    changelog, parked, nothing = SHOP.changelog(SHOP.parked).name, SHOP.parked.name, cast(Any, None)
    broker = Broker([FACTS.name, changelog], 2, Random(0), SHOP.group)
    reader, producer, offsets = (
        cast(Any, each) for each in (FakeReader(broker, Random(0)), Committing(broker), FakeOffsets(broker))
    )
    places = frozenset(Place(topic, partition) for topic in (FACTS.name, changelog) for partition in range(2))

    async def run() -> None:
        store = cast(Any, FakeStore(parked))
        engine = Engine(
            SHOP, [Noting()], {parked: store}, reader, nothing, producer, offsets, lambda: None, broker.sign, 1.0
        )
        engine.assignment = Assignment(places, frozenset(), b"member", 1, "member")
        await engine._begin()
        for place in (IDLE, BUSY):
            append(broker, place, None)
        while set(broker.committed.values()) != {1}:
            await turn(engine)
        await engine._settle()
        await act(engine, broker)
        await engine._settle()

    asyncio.run(run())


def append(broker: Broker, place: Place, state: str | None) -> None:
    broker.append(place.topic, (KEYS[place.number], b"x"), state)


async def turn(engine: Engine) -> None:
    await engine.step()
    if engine._committer.task is not None:
        await asyncio.wait([engine._committer.task])


async def busy_turns(engine: Engine, broker: Broker) -> None:
    for _ in range(A_FEW):
        append(broker, BUSY, None)
        await turn(engine)


def test_the_last_marker_of_an_idle_partition_is_committed_with_other_partitions() -> None:
    async def go_idle(engine: Engine, broker: Broker) -> None:
        append(broker, IDLE, "committed")
        await busy_turns(engine, broker)
        await engine._settle()
        assert (broker.committed[IDLE], engine.reading.lag(engine.holdings.sources[IDLE])) == (3, 0)

    with_engine(go_idle)


def test_a_partition_that_gets_only_aborted_records_is_no_standstill() -> None:
    async def watch(engine: Engine, broker: Broker) -> None:
        watchdog = Watchdog()
        for attempt in range(6):
            append(broker, IDLE, "aborted")
            await busy_turns(engine, broker)
            watchdog.check(
                attempt,
                engine.holdings.reached,
                {place: len(broker.slots[place]) for place in engine.holdings.reached},
                attempt * STANDSTILL_S / 2.5,
            )

    with_engine(watch)


def test_a_wait_for_the_position_of_a_marker_ends_at_once() -> None:
    async def wait(engine: Engine, broker: Broker) -> None:
        told = asyncio.create_task(engine.holdings.answers.progress())
        await asyncio.sleep(0)
        append(broker, IDLE, "aborted")
        while engine.holdings.position(cast(Any, SimpleNamespace(source=FACTS)), IDLE.number) < 2:
            await turn(engine)
        await asyncio.sleep(0)
        assert told.done()

    with_engine(wait)


def test_what_is_ours_is_not_read_from_behind_a_marker_that_is_still_being_written() -> None:
    async def take_over_again(engine: Engine, broker: Broker) -> None:
        await engine._begin()
        await busy_turns(engine, broker)
        await engine._settle()
        assert broker.committed[BUSY] == 1 + A_FEW

    with_engine(take_over_again)
