"""Replicas of tables are closed when they move away, and restored when a read finds one broken that is still held."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.domain.errors import NotReady
from shared.engine.committer import Aborted
from shared.engine.engine import Engine
from shared.engine.membership import Assignment
from shared.engine.processors import AggregateProcessor
from shared.runtime.positions import Place
from shared.tables.replicas import Replicas
from shared.tables.store import StoreFailed
from shared.topology.topics import Table, Topology
from tests.accounts.domain.decide import DECIDER
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS
from tests.faults.simulated import Broker, FakeOffsets, FakeProducer, FakeReader, FakeStore, Slot, membership

pytestmark = pytest.mark.usefixtures("no_waiting")

TOPOLOGY = Topology("accounts", (COMMANDS, EVENTS), (ACCOUNTS,), partitions=2)
ENDING = Topology(
    "carts", (COMMANDS, EVENTS), (Table("carts", source=COMMANDS, ends=True),), partitions=1, history=EVENTS
)
CHANGELOGS = [TOPOLOGY.changelog(table).name for table in TOPOLOGY.all_tables()]
IDS = {changelog: f"id of {changelog}" for changelog in CHANGELOGS}
MEMBER = membership(Broker([], TOPOLOGY.partitions, random.Random(1)), "w")
SOURCES = [TOPOLOGY.parking.name, COMMANDS.name]


def test_a_worker_that_lost_its_membership_keeps_no_store_open() -> None:
    async def lose(engine: Engine, stores: dict[str, FakeStore]) -> None:
        assert [store.opened for store in stores.values()] == [{0, 1}] * len(CHANGELOGS)
        await engine._roll_back(Aborted("another generation", lost_membership=True))

    assert [store.opened for store in _with_engine(lose).values()] == [set()] * len(CHANGELOGS)


def test_a_key_released_while_others_owned_it_is_not_parked_again() -> None:
    async def return_home(engine: Engine, stores: dict[str, FakeStore]) -> None:
        changelog = Place(TOPOLOGY.changelog(TOPOLOGY.parked).name, 0)
        engine.holdings.replicas.hold(active=(), standby=(), starts={}, ends={}, topic_ids={})
        parked = stores[TOPOLOGY.parked.name]
        parked.apply(0, {b"released": b"row", b"parked": b"row"}, 1)
        brokers = cast(Any, engine)._take_over._offsets.broker.slots[changelog]
        brokers += [None, Slot(b"parked", b"row", None), None, Slot(b"parked", b"more", None)]  # compacted
        assert engine.assignment is not None
        await engine._begin()
        while not engine.holdings.replicas.held[changelog].restored:
            await engine.step()
        assert parked.rows(0) == {b"parked": b"more"}

    _with_engine(return_home)


@pytest.mark.parametrize(
    ("last", "keeps"),
    [
        pytest.param(3, False, id="it lacks a record that is gone"),
        pytest.param(4, False, id="the records of all its rows are gone"),
        pytest.param(5, True, id="it lacks records that are there"),
        pytest.param(9, True, id="it lacks none"),
        pytest.param(10, False, id="it has a record that is not there"),
    ],
)
def test_a_store_that_does_not_match_its_changelog_is_wiped_and_restored(last: int, keeps: bool) -> None:
    """The changelog begins at 5 and ends before 10; the store has everything up to `last`."""

    async def return_home(engine: Engine, stores: dict[str, FakeStore]) -> None:
        changelog = Place(TOPOLOGY.changelog(ACCOUNTS).name, 0)
        engine.holdings.replicas.hold(active=(), standby=(), starts={}, ends={}, topic_ids={})
        stores[ACCOUNTS.name].apply(0, {b"a-1": b"row"}, last)
        engine.holdings.replicas.hold(
            [changelog], standby=(), starts={changelog: 5}, ends={changelog: 10}, topic_ids=IDS
        )
        replica = engine.holdings.replicas.held[changelog]
        assert (stores[ACCOUNTS.name].rows(0), replica.position) == (({b"a-1": b"row"}, last + 1) if keeps else ({}, 5))
        assert replica.restored is (last == 9)

    _with_engine(return_home)


@pytest.mark.parametrize("is_owner", [True, False], ids=["owner", "standby"])
@pytest.mark.parametrize(
    ("ends", "last", "hours", "keeps"),
    [
        pytest.param(True, 5, 22, True, id="all tombstones are there"),
        pytest.param(True, 5, 25, False, id="some may be gone"),
        pytest.param(True, 5, 23.5, False, id="some may be gone before it is restored"),
        pytest.param(True, 5, -2, False, id="this machine's clock is wrong"),
        pytest.param(True, 8, 25, True, id="it lacks none"),
        pytest.param(False, 5, 25, True, id="there are none"),
    ],
)
def test_a_store_that_has_not_followed_for_a_day_may_lack_tombstones(
    ends: bool, last: int, hours: float, keeps: bool, is_owner: bool
) -> None:
    """The changelog begins at 0 and ends before 10, with the marker of the last transaction; for its next owner, behind
    a record of its own and the marker of that."""
    table = Table("carts", source=COMMANDS, ends=ends)
    topology = replace(ENDING, tables=(table,))
    changelog, store = Place(topology.changelog(table).name, 0), FakeStore(table.name)
    store.open(0, "id")
    store.apply(0, {b"a-1": b"row"}, last, time.time() - hours * 3_600)
    replicas = Replicas(topology, cast(Any, {table.name: store}), {})
    written = {changelog: 10} if is_owner else {}
    ends_at = {changelog: 10} | replicas.pass_written(written)
    held = [changelog] if is_owner else []
    replicas.hold(held, {changelog} - {*held}, {changelog: 0}, ends_at, {changelog.topic: "id"}, written)
    assert (store.rows(0) != {}) is keeps


def test_a_restore_from_the_start_that_is_interrupted_goes_on() -> None:
    """What it has read is old, but it began today, so nothing that it lacks was dropped."""
    changelog, store = Place(ENDING.changelog(ENDING.tables[0]).name, 0), FakeStore("carts")
    old = SimpleNamespace(key=b"a-1", value=b"row", offset=3, timestamp=1_600_000_000_000)
    for position in (0, 4):
        replicas = Replicas(ENDING, cast(Any, {"carts": store}), {})
        replicas.hold([changelog], (), {changelog: 0}, {changelog: 10}, {changelog.topic: "id"})
        assert replicas.held[changelog].position == position
        replicas.held[changelog].apply([cast(Any, old)])


READS: dict[str, Callable[[Replicas], object]] = {
    "a row": lambda replicas: replicas.read(ACCOUNTS, 0, b"a-1"),
    "all keys": lambda replicas: list(replicas.keys(ACCOUNTS, 0)),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_replica_that_a_read_finds_broken_is_restored(read: Callable[[Replicas], object]) -> None:
    async def heal(engine: Engine, stores: dict[str, FakeStore]) -> None:
        stores[ACCOUNTS.name].broken.add(0)
        with pytest.raises(NotReady):
            read(engine.holdings.replicas)
        await engine.step()

    assert not _with_engine(heal)[ACCOUNTS.name].broken


def test_a_broken_replica_of_the_parked_table_is_restored_before_a_record_is_handled() -> None:
    async def process(engine: Engine, stores: dict[str, FakeStore]) -> None:
        broken = stores[TOPOLOGY.parked.name].broken
        broken |= {0, 1}
        cast(Any, engine)._take_over._offsets.broker.append(COMMANDS.name, (b"a-1", b"charge!"), None)
        while broken == {0, 1}:
            await engine.step()

    assert len(_with_engine(process)[TOPOLOGY.parked.name].broken) == 1


@pytest.mark.parametrize(("kept", "stops"), [(True, False), (False, True)], ids=["kept", "filled from nothing"])
def test_a_replica_that_breaks_while_restoring_is_wiped_if_it_was_kept_and_else_stops_the_worker(
    kept: bool, stops: bool
) -> None:
    async def restore(engine: Engine, stores: dict[str, FakeStore]) -> None:
        engine.holdings.replicas.hold(active=(), standby=(), starts={}, ends={}, topic_ids={})
        changelog = [Slot(b"a-1", b"row", None), Slot(b"a-2", b"row", None)]
        cast(Any, engine)._take_over._offsets.broker.slots[CHANGELOGS[0], 0] += changelog
        if kept:
            stores[ACCOUNTS.name].apply(0, {b"a-1": b"row"}, 0)
        assert engine.assignment is not None
        for _ in range(2):  # each healed replica causes another take-over, which must change nothing
            await engine._begin()
        _read_broken(engine, stores)
        with pytest.raises(StoreFailed) if stops else nullcontext():
            await engine.step()

    assert bool(_with_engine(restore)[ACCOUNTS.name].broken) == stops


def test_a_broken_replica_that_moved_away_is_not_restored() -> None:
    async def move(engine: Engine, stores: dict[str, FakeStore]) -> None:
        _read_broken(engine, stores)
        engine.assignment = _assignment(1)
        await engine._begin()
        await engine.step()

    assert _with_engine(move)[ACCOUNTS.name].opened == {1}


def test_a_read_that_outlasts_its_replica_does_not_mark_the_next_one_broken() -> None:
    async def read(engine: Engine, stores: dict[str, FakeStore]) -> None:
        replicas, store = engine.holdings.replicas, stores[ACCOUNTS.name]
        first, get = replicas.held[Place(CHANGELOGS[0], 0)], store.get

        def slow(partition: int, key: bytes) -> bytes | None:
            replicas.wipe(first)
            ends = {**dict.fromkeys(replicas.held, 0), first.changelog: 9}
            replicas.hold(ends, (), dict.fromkeys(ends, 0), ends, IDS)
            store.broken.add(partition)
            return get(partition, key)

        store.get = slow  # type: ignore[method-assign]
        with pytest.raises(NotReady):
            replicas.read(ACCOUNTS, 0, b"a-1")
        assert list(replicas.failures) == []

    _with_engine(read)


def _with_engine(act: Callable[[Engine, dict[str, FakeStore]], Awaitable[None]]) -> dict[str, FakeStore]:
    """Runs `act` on an engine that has taken over two partitions, and returns its stores."""
    broker = Broker([*CHANGELOGS, *SOURCES, EVENTS.name], TOPOLOGY.partitions, random.Random(1))
    # otherwise it would first commit where it starts
    broker.committed |= {Place(source, partition): 0 for source in SOURCES for partition in (0, 1)}
    broker.members.add("w")
    stores = {table.name: FakeStore(table.name) for table in TOPOLOGY.all_tables()}

    async def run() -> None:
        engine = Engine(
            TOPOLOGY,
            [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)],
            stores=cast(Any, stores),
            reader=cast(Any, FakeReader(broker, broker.chance)),
            new_consumer=cast(Any, None),
            producer=cast(Any, FakeProducer(broker, "w")),
            offsets=cast(Any, FakeOffsets(broker)),
            alive=lambda: None,
            sign=broker.sign,
            lease_s=10.0,
        )
        engine.assignment = _assignment(0, 1)
        await engine._begin()
        await act(engine, stores)

    asyncio.run(run())
    return stores


def _assignment(*partitions: int) -> Assignment:
    places = {Place(topic, partition) for topic in [*CHANGELOGS, *SOURCES] for partition in partitions}
    return Assignment(frozenset(places), frozenset(), MEMBER, 0, "w")


def _read_broken(engine: Engine, stores: dict[str, FakeStore]) -> None:
    stores[ACCOUNTS.name].broken.add(0)
    with pytest.raises(NotReady):
        engine.holdings.replicas.read(ACCOUNTS, 0, b"a-1")
