"""Rows that expire by the time of the events in their partition: the same rows whoever works, and however often.

On a simulated broker. tests/queries/test_ending.py has them on real workers, tests/pipelines/test_ending.py in Spark.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from threading import Semaphore
from typing import Any, cast

import pytest

from pipelines.arrow import as_batches
from pipelines.catalog import table_in
from pipelines.consistency import difference
from pipelines.folds import fold_batches
from pipelines.parked import Scope, _clocked
from pipelines.sources import RECORDS
from shared.domain import EventEnvelope, State
from shared.domain.row import Row
from shared.engine import expiry
from shared.engine.batch import Batch
from shared.engine.retries import NO_MORE_AT_ONCE, OperatorRequests
from shared.engine.wiring import processors_of, wired
from shared.kafka.murmur2 import partition_of
from shared.parking.parked import PARKED_CODEC, Failure, OperatorRequest
from shared.parking.parking import Parking
from shared.runtime.positions import Place
from shared.tables.rows import Rows
from shared.tables.store import RowStore
from shared.testing.conversation import MemoryRecord
from shared.topology import Join, Projection, Service, Table, Topology
from tests.carts.domain import DECIDER, ItemAdded
from tests.carts.projections import PROJECTIONS, Fresh, Waiting, fresh
from tests.carts.topology import CARTS, EVENTS, FRESH, WAITING
from tests.engine.assigned import Assigned
from tests.engine.test_store import _file_bytes
from tests.faults.simulated import TRANSACTION_STEPS, Broker, Crash, Fault
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("no_waiting", "no_lag")

BEGIN = datetime(1997, 1, 1, tzinfo=UTC)
NUMBERS = count(1)
VIEW = table_in("tests.carts", FRESH.name)


class Shown(State):
    waiting: int
    fresh: int


def shown(waiting: Waiting | None, fresh: Fresh | None, _cart: str) -> Shown:
    return Shown(waiting=waiting.items if waiting else 0, fresh=fresh.items if fresh else 0)


class Dated(State):
    until: str


SHOWN = Table.joined("shown", WAITING, FRESH)
JOIN = Join(SHOWN, shown, state=Shown)
TOPOLOGY = Topology("viewer", topics=(), tables=(WAITING, FRESH, SHOWN), partitions=2)
SERVICE = Service(TOPOLOGY, projections=PROJECTIONS, joins=[JOIN])


@pytest.fixture
def broker() -> Broker:
    return broker_of(random.Random(1))


def broker_of(chance: random.Random) -> Broker:
    topics = [EVENTS.name, *(topic.name for topic in TOPOLOGY.all_topics())]
    return Broker(topics, TOPOLOGY.partitions, chance, TOPOLOGY.group)


def worker(broker: Broker, name: str = "w", service: Service = SERVICE) -> Assigned:
    processors = wired(TOPOLOGY, processors_of(service))
    return Assigned(broker, name, 0, 1, topology=TOPOLOGY, processors=processors, others=[EVENTS.name])


def add(broker: Broker, cart: str, at_s: float, item: str = "ice") -> None:
    """at_s: when it occurs."""
    codec = DECIDER.event_codec
    number, at = next(NUMBERS), BEGIN + timedelta(seconds=at_s)
    ids = {"event_id": f"e{number}", "aggregate_id": cart, "sequence": number, "correlation_id": f"c{number}"}
    broker.append(EVENTS.name, (cart.encode(), codec.write(ItemAdded(item=item), occurred_at=at, **ids)), None)  # type: ignore[arg-type]


def shares_partition(cart: str, other: str) -> bool:
    return len({partition_of(each.encode(), TOPOLOGY.partitions) for each in (cart, other)}) == 1


def same_partition(cart: str) -> str:
    return next(f"c-{number}" for number in count() if shares_partition(f"c-{number}", cart))


def live(broker: Broker, table: Table = FRESH) -> dict[str, Row[Any]]:
    """The rows, by the changelog."""
    codec = JOIN.row_codec if table == SHOWN else VIEW.row_codec
    last = {
        cast(bytes, read.key).decode(): read.value
        for number in range(TOPOLOGY.partitions)
        for read in broker.visible(Place(TOPOLOGY.changelog(table).name, number), 0)
    }
    return {key: codec.decode(value) for key, value in sorted(last.items()) if value is not None}


def in_spark(
    broker: Broker, parked: Sequence[tuple[int, int]] = (), since: Mapping[int, int] | None = None
) -> dict[str, Any]:
    """What Spark's workers make of the same log, by key."""
    records = (
        (number, read.offset, BEGIN, read.key, read.value)
        for number in range(TOPOLOGY.partitions)
        for read in broker.visible(Place(EVENTS.name, number), 0)
    )
    clocked = _clocked(Scope({}, tuple(parked)), as_batches(records, RECORDS))
    rows = (
        row for out in fold_batches("tests.carts", FRESH.name, None, since or {}, clocked) for row in out.to_pylist()
    )
    return {row["key"].decode(): row for row in rows}


def rebuilt(broker: Broker) -> dict[str, tuple[int, Any]]:
    folded = in_spark(broker)
    return {
        key: (row["sequence"], row["state"])
        for key, row in sorted(folded.items())
        if row["sequence"] and not row["later"]
    }


def as_folded(rows: Mapping[str, Row[Any]]) -> dict[str, tuple[int, Any]]:
    return {key: (row.sequence, row.state.model_dump_json().encode()) for key, row in rows.items()}


def test_a_row_goes_with_the_event_that_says_it_is_late_enough_and_its_key_begins_again(broker: Broker) -> None:
    """Ice lasts for a second."""
    add(broker, "ann", 0)
    add(broker, "ann", 0.5)
    asyncio.run(worker(broker).work())
    assert live(broker)["ann"].state == Fresh(items=2, until=BEGIN + timedelta(seconds=1.5))
    add(broker, same_partition("ann"), 1.5, "tea")
    asyncio.run(worker(broker, "v").work())
    assert [*live(broker)] == [same_partition("ann")]
    add(broker, "ann", 2)
    asyncio.run(worker(broker).work())
    assert live(broker)["ann"].sequence == 1


def history(broker: Broker, chance: random.Random, records: int) -> None:
    """In an order that is not quite that of the events' times."""
    for _ in range(records):
        at = next(NUMBERS) * 300 + chance.uniform(-4000, 0)
        add(broker, chance.choice(["ann", "bob", "eve", "tom"]), at, chance.choice(["ice", "tea", "tea"]))


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] if seed else []) for seed in range(25)])
def test_through_any_kills_a_replay_and_spark_have_the_same_rows(
    broker: Broker, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """in short, seed 0"""
    chance = random.Random(seed)
    monkeypatch.setattr(expiry, "AT_ONCE", 2)
    for _ in range(12):
        history(broker, chance, chance.randrange(12))
        at_work = worker(broker)
        if chance.random() < 0.7:
            at_work.producer.fault = Fault(chance.choice(TRANSACTION_STEPS), chance.choice(["refuse", "crash"]))
        since = {number: broker.committed.get(Place(EVENTS.name, number), 0) for number in range(TOPOLOGY.partitions)}
        with suppress(Crash):
            asyncio.run(at_work.work())
        rows, folded = live(broker), in_spark(broker, since=since)
        for key in folded:
            row = rows.get(key)
            versions = VIEW.versions(folded[key]["sequence"], [folded[key]["state"], *folded[key]["later"]])
            told = None if row is None else VIEW.row_codec.encode(row)
            assert difference(VIEW.row_codec, told, versions) is None
    for name in ("w", "v"):
        asyncio.run(worker(broker, name).work())
    assert as_folded(live(broker)) == rebuilt(broker)
    shown_fresh = {key: row.state.fresh for key, row in live(broker, SHOWN).items() if row.state.fresh}
    assert shown_fresh == {key: row.state.items for key, row in live(broker).items()}
    again = broker_of(chance)
    for number in range(TOPOLOGY.partitions):
        for read in broker.visible(Place(EVENTS.name, number), 0):
            again.append(EVENTS.name, (read.key, read.value), None)
    asyncio.run(worker(again).work())
    asyncio.run(worker(again, "v").work())
    assert as_folded(live(again)) == as_folded(live(broker))


class Buggy:
    """Its view fails at what is bad, until it is healed."""

    def __init__(self) -> None:
        self.healed = False
        self.service = replace(SERVICE, projections=(PROJECTIONS[0], replace(PROJECTIONS[1], project=self._fails)))

    def _fails(self, view: Fresh | None, event: EventEnvelope[ItemAdded], cart: str) -> Fresh:
        if event.data.item == "bad" and not self.healed:
            raise ValueError("a bug")
        return fresh(view, event, cart)


@pytest.fixture
def buggy(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Buggy:
    async def reread(_: object, place: Place, offsets: Sequence[int]) -> tuple[dict[int, Any], Failure]:
        reads = (read for read in broker.visible(place, 0) if read.offset in offsets)
        records = (MemoryRecord(place.topic, read.key or b"", read.value or b"", read.offset) for read in reads)
        return {record.offset: record for record in records}, NO_MORE_AT_ONCE

    monkeypatch.setattr(OperatorRequests, "_reread", reread)
    return Buggy()


def retry(broker: Broker, cart: str) -> None:
    number = partition_of(cart.encode(), TOPOLOGY.partitions)
    request = OperatorRequest(action="retry", id=f"{FRESH.name}/{number}/{cart}")
    broker.append(TOPOLOGY.parking.name, (cart.encode(), request.record[1]), None)


def test_what_was_parked_counts_at_the_time_when_it_came(broker: Broker, buggy: Buggy) -> None:
    """Its row waits for it, though it has expired meanwhile."""
    other = same_partition("ann")
    add(broker, "ann", 0, "tea")
    add(broker, other, 3_000, "tea")
    add(broker, "ann", 2_000, "bad")  # in time by the partition's clock, until 5,600
    add(broker, "ann", 2_500, "tea")
    add(broker, other, 4_000, "tea")
    asyncio.run(worker(broker, service=buggy.service).work())
    assert live(broker)["ann"].state.items == 1, "has expired, and is held"
    buggy.healed = True
    retry(broker, "ann")
    asyncio.run(worker(broker, "v", buggy.service).work())
    assert live(broker)["ann"].sequence == 3
    assert as_folded(live(broker)) == rebuilt(broker)
    add(broker, other, 9_000)
    asyncio.run(worker(broker, service=buggy.service).work())
    assert [*live(broker)] == [other]
    number = partition_of(b"ann", TOPOLOGY.partitions)
    parked = broker.latest(Place(TOPOLOGY.changelog(TOPOLOGY.parked).name, number))
    noted = [key for key, value in parked.items() if value and b"clock/" in (key or b"")]
    assert len(noted) == 1, "what was noted of parked records is gone with them"


def test_a_row_that_has_expired_while_it_was_parked_goes_though_none_was_found_before_its_commit(
    broker: Broker, buggy: Buggy
) -> None:
    other = same_partition("ann")
    add(broker, "ann", 2_000, "bad")  # the first of its key
    add(broker, other, 9_000, "tea")
    asyncio.run(worker(broker, service=buggy.service).work())
    assert [*live(broker)] == [other]
    buggy.healed = True
    retry(broker, "ann")
    at_work, may_commit = worker(broker, "v", buggy.service), Semaphore(0)
    commit = at_work.producer.commit

    def held(offsets: Mapping[Place, int], member: bytes) -> Mapping[Place, int]:
        assert may_commit.acquire(timeout=60)
        return commit(offsets, member)

    at_work.producer.commit = held  # type: ignore[method-assign]

    async def look_while_it_commits() -> None:
        engine = at_work.engine
        await at_work.start()
        for _ in range(30):
            await engine.step()
            await engine._filling.end_expired()
            if engine._committer.is_committing:
                may_commit.release()
            await engine._settle()

    asyncio.run(look_while_it_commits())
    changelog = Place(TOPOLOGY.changelog(FRESH).name, partition_of(b"ann", TOPOLOGY.partitions))
    assert [read.value is None for read in broker.visible(changelog, 0) if read.key == b"ann"] == [False, True]
    assert [*live(broker)] == [other]


def test_many_that_expire_at_once_go_in_commits_of_their_own(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while no record comes."""
    monkeypatch.setattr(expiry, "AT_ONCE", 2)
    for number in range(20):
        add(broker, f"c-{number}", 0)
    asyncio.run(worker(broker).work())
    for cart in ("ann", next(f"d-{n}" for n in count() if not shares_partition(f"d-{n}", "ann"))):
        add(broker, cart, 10)
    asyncio.run(worker(broker).work())
    assert {row.state.until for row in live(broker).values()} == {BEGIN + timedelta(seconds=11)}


def test_a_row_that_a_join_can_not_do_without_stays(broker: Broker) -> None:
    """And holds nothing up."""

    def needs(waiting: Waiting | None, fresh: Fresh | None, cart: str) -> Shown:
        if waiting and not fresh and cart == "ann":
            raise ZeroDivisionError
        return shown(waiting, fresh, cart)

    service = replace(SERVICE, projections=PROJECTIONS[::-1], joins=[replace(JOIN, join=needs)])
    other = same_partition("ann")
    for cart, at_s in (("ann", 0), (other, 0), (other, 9)):
        add(broker, cart, at_s)
    asyncio.run(worker(broker, service=service).work())
    assert {key: row.sequence for key, row in live(broker).items()} == {"ann": 1, other: 1}


@pytest.mark.parametrize("view", [Waiting, Dated], ids=["no such field", "no instant"])
def test_a_view_that_expires_says_when(view: type[State]) -> None:
    table = Table("dated", source=EVENTS, expires="until")
    projection: Projection[Any, Any] = Projection(table, fresh, initial=None, events=(ItemAdded,), state=view)
    topology = replace(TOPOLOGY, tables=(table,))
    with pytest.raises(ValueError, match=r"'until'.*; fix: "):
        wired(topology, processors_of(Service(topology, projections=[projection])))


def test_an_aggregates_row_does_not_expire() -> None:
    with pytest.raises(ValueError, match=r"an aggregate's row can't expire; fix: .* Timer"):
        replace(CARTS, expires="until")


@pytest.mark.long  # in short, the tests above, and the store's own in test_store.py
def test_of_a_million_keys_that_pass_a_store_has_little_more_than_the_ten_thousand_that_live(tmp_path: Path) -> None:
    """Compacted, the changelog has these alone, once brokers have dropped the deletions, after a day."""
    passing, live_s = 1_000_000, 10_000
    (view,) = (each for each in processors_of(SERVICE) if isinstance(each, expiry.ExpiringProcessor))
    view._joins, ends = {}, expiry.Expiry()
    store = RowStore(tmp_path, FRESH.name, FRESH.indexes, state_type=Fresh, ends=True)
    notes = RowStore(tmp_path, TOPOLOGY.parked.name)
    for each in (store, notes):
        each.open(0, "changelog-id")
    compacted = dict[bytes, bytes | None]()
    write = DECIDER.event_codec.write
    melts = ItemAdded(item="ice")
    for begins in range(0, passing, 500):
        records = []
        for number in range(begins, begins + 500):
            cart, at = f"cart-{number}", BEGIN + timedelta(seconds=number / live_s)
            ids = {"event_id": f"e{number}", "aggregate_id": cart, "correlation_id": "c"}
            event = write(melts, sequence=1, occurred_at=at, **ids)
            records.append(MemoryRecord(EVENTS.name, cart.encode(), event, number))
        rows: Rows[Any] = Rows("fresh", store, 0, None, view.codec)  # type: ignore[arg-type]
        noted = Rows("parked", notes, 0, None, PARKED_CODEC)
        parking = Parking(noted, set())
        view.process(records, rows, Batch(""), parking)
        ends.end_some(view, rows, parking)
        for changed, into in ((rows, store), (noted, notes)):
            into.apply(0, changed.encoded(), begins)
        ends.committed()
        compacted |= rows.encoded()
        if begins % (passing // 5) == passing // 10:
            alive = sum(2 * len(key) + len(value) + 50 for key, value in compacted.items() if value)  # with their index
            eventually(lambda: _file_bytes(tmp_path), lambda found, most=1.5 * alive: found <= most)  # type: ignore[misc]
            compacted = {key: value for key, value in compacted.items() if value}
            assert live_s <= len(compacted) <= 1.5 * live_s
            assert sum(1 for _ in store.scan(0)) == len(compacted)
    store.close_all()
    notes.close_all()
