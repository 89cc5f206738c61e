"""What a worker reports about its replicas, as their owner and after its lease has ended, and how it sends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from random import Random
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from shared.engine import lags
from shared.engine.committer import Committer
from shared.engine.engine import Engine
from shared.engine.lags import LAG_OF_S
from shared.engine.membership import Assignment
from shared.group import node as node_module
from shared.group.node import LOG_READERS, WorkerNode
from shared.kafka.producer import ProducerFailed
from shared.runtime.clock import elapsed_s
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.tables.replicas import Replica
from shared.topology.topics import Topology
from tests.faults.simulated import Broker, FakeReader, FakeStore

SHOP = Topology("shop", ())
TABLE = SHOP.parked
LEASE_S = 60.0


class Ends:
    """In place of LeaderEnds: the changelog's end, unless it is None, for brokers that do not answer."""

    def __init__(self, end: int | None) -> None:
        self.end = end
        self.asked = 0
        self.hears, self.may_answer = Event(), Event()
        self.may_answer.set()

    def leader(self, _place: Place) -> int:
        return 1

    async def of(self, _leader: int, places: Iterable[Place]) -> dict[Place, int]:
        self.asked += 1
        self.hears.set()
        await asyncio.to_thread(self.may_answer.wait)
        return {} if self.end is None else dict.fromkeys(places, self.end)


@pytest.fixture
def engine() -> Engine:
    nothing: Any = None
    reader = cast(Any, FakeReader(Broker((), 1, Random(0)), Random(0)))
    engine = Engine(SHOP, [], {TABLE.name: nothing}, reader, nothing, nothing, nothing, print, nothing, LEASE_S)
    engine.lags.leaders = cast(Any, Ends(None))
    return engine


@pytest.fixture
def node(engine: Engine) -> WorkerNode:
    app = SimpleNamespace(topology=SHOP, settings=Settings(), engine=engine, new_consumer=None, routes=None)
    app.assignor = SimpleNamespace(awaited=frozenset())
    return WorkerNode(cast(Any, app))


def hold(engine: Engine, active: bool, position: int, restored: bool = True) -> None:
    """Gives the engine a replica of partition 0, whose changelog ends at 10."""
    place = Place(engine.holdings.replicas.changelog(TABLE), 0)
    store = cast(Any, FakeStore(TABLE.name))
    store.open(0, "id")
    engine.holdings.replicas.held[place] = Replica(place, store, active, position, target=10, end=10, restored=restored)


def learn_end(engine: Engine, end: int, since_s: float = 0.0) -> None:
    (replica,) = engine.holdings.replicas.held.values()
    replica.learn_end(end, elapsed_s() - since_s)


def lag_of(node: WorkerNode, readers: int = 1) -> int | None:
    """What that many readers at once are told of partition 0."""

    async def told() -> list[int | None]:
        return await asyncio.gather(*(node.standby_lag(TABLE, 0) for _ in range(readers)))

    (lag,) = set(asyncio.run(told()))
    return lag


def test_an_owner_serves_and_reports_no_lag(engine: Engine, node: WorkerNode) -> None:
    hold(engine, active=True, position=10)
    engine.extend_lease(elapsed_s())
    assert node.serves(TABLE, 0)
    assert lag_of(node) is None


def test_an_owner_whose_lease_ended_neither_serves_nor_reports_a_lag(engine: Engine, node: WorkerNode) -> None:
    """Like a worker that was frozen and wakes up: others own its partitions by now, and have written."""
    hold(engine, active=True, position=10)
    engine.extend_lease(elapsed_s() - LEASE_S)
    assert not node.serves(TABLE, 0)
    assert lag_of(node) is None


@pytest.mark.skipif(sys.platform != "linux", reason="no clock of this platform runs while the machine sleeps")
def test_an_owner_that_slept_through_its_lease_does_not_serve(
    engine: Engine, node: WorkerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole machine slept, as laptops and VMs do: `time.monotonic` has stood still."""
    hold(engine, active=True, position=10)
    engine.extend_lease(elapsed_s())
    woken = time.clock_gettime(time.CLOCK_BOOTTIME) + LEASE_S
    monkeypatch.setattr("time.clock_gettime", lambda _: woken)
    assert not node.serves(TABLE, 0)


def test_an_owner_that_a_hypervisor_stopped_for_its_lease_does_not_serve(
    engine: Engine, node: WorkerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other clocks of the machine have stood still."""
    hold(engine, active=True, position=10)
    engine.extend_lease(elapsed_s())
    woken = time.time() + LEASE_S
    monkeypatch.setattr(engine.membership.lease, "_real", lambda: woken)
    assert not node.serves(TABLE, 0)


def assigned(engine: Engine, generation: int, member_id: str = "m-1", active: bool = True) -> Assignment:
    """An assignment of partition 0 of the table, or of nothing."""
    own = {Place(engine.holdings.replicas.changelog(TABLE), 0)} if active else set()
    return Assignment(frozenset(own), frozenset(), b"", generation, member_id)


def release(engine: Engine) -> None:
    async def obey() -> None:
        engine._inbox.put_nowait((None, asyncio.get_running_loop().create_future()))
        await engine.step()

    asyncio.run(obey())


@pytest.mark.parametrize(
    ("generation", "member_id", "active", "serves"),
    [(8, "m-1", True, True), (9, "m-1", True, False), (7, "m-2", True, False), (8, "m-1", False, False)],
    ids=["goes_on", "missed_one", "had_been_replaced", "loses_it"],
)
def test_an_owner_serves_on_if_nobody_else_can_have_owned_the_partition(
    engine: Engine, node: WorkerNode, generation: int, member_id: str, active: bool, serves: bool
) -> None:
    """As soon as it hears of the assignment, not only once it has taken over."""
    engine.joined(assigned(engine, 7), elapsed_s())
    hold(engine, active=True, position=10)
    release(engine)
    engine.joined(assigned(engine, generation, member_id, active), elapsed_s())
    assert node.serves(TABLE, 0) is serves
    assert lag_of(node) is None


@pytest.mark.parametrize(("generation", "holds"), [(7, False), (8, True)])
def test_a_lease_begins_only_with_an_assignment_of_a_new_generation(
    engine: Engine, generation: int, holds: bool
) -> None:
    """A superseded coordinator gives the present one from memory to a member that joins again."""
    engine.joined(assigned(engine, 7), elapsed_s() - LEASE_S)
    engine.joined(assigned(engine, generation), elapsed_s())
    assert engine.membership.in_lease is holds


def test_an_owner_that_was_expelled_serves_no_more_until_it_has_joined_and_restored_again(
    engine: Engine, node: WorkerNode
) -> None:
    """Others may have written its partitions since; while the group only rebalances, nobody has."""
    engine.joined(assigned(engine, 7), elapsed_s())
    hold(engine, active=True, position=10)
    engine.end_lease()
    assert not node.serves(TABLE, 0)
    release(engine)
    assert not node.serves(TABLE, 0)
    engine.joined(assigned(engine, 9, "m-2"), elapsed_s())
    assert not node.serves(TABLE, 0)
    hold(engine, active=True, position=10)
    assert node.serves(TABLE, 0)


@pytest.mark.parametrize(("active", "restored"), [(False, True), (False, False), (True, False)])
def test_a_replica_that_follows_its_changelog_reports_its_lag(
    engine: Engine, node: WorkerNode, active: bool, restored: bool
) -> None:
    hold(engine, active, position=7, restored=restored)
    learn_end(engine, 10)
    engine.extend_lease(elapsed_s())
    assert not node.serves(TABLE, 0)
    assert lag_of(node) == 3


def test_a_standby_whose_lease_ended_reports_no_lag(engine: Engine, node: WorkerNode) -> None:
    """Like a worker that was frozen and wakes up: it does not know how far the changelog has grown."""
    hold(engine, active=False, position=10)
    learn_end(engine, 10)
    engine.extend_lease(elapsed_s() - LEASE_S)
    assert lag_of(node) is None


@pytest.mark.parametrize(
    ("since_s", "end", "lag", "asked"),
    [(0.0, 13, 2, 0), (0.0, None, 2, 0), (LAG_OF_S, 13, 3, 1), (LAG_OF_S, None, None, 2)],
    ids=["fresh", "fresh_and_cut_off", "old", "old_and_cut_off"],
)
def test_readers_of_a_standby_have_the_brokers_asked_where_its_changelog_ends_unless_that_is_known(
    engine: Engine, node: WorkerNode, since_s: float, end: int | None, lag: int | None, asked: int
) -> None:
    """Once for all of them. While a take-over or a commit waits, it reads nothing that would tell."""
    engine.lags.leaders = ends = cast(Any, Ends(end))
    hold(engine, active=False, position=10)
    engine.extend_lease(elapsed_s())
    learn_end(engine, 12, since_s)
    assert (lag_of(node, readers=5), ends.asked) == (lag, asked)


def test_a_question_that_a_reader_finds_under_way_does_not_count_if_it_was_asked_too_early(
    engine: Engine, node: WorkerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine, where an answer takes seconds."""
    engine.lags.leaders = ends = cast(Any, Ends(11))
    hold(engine, active=False, position=10)
    engine.extend_lease(elapsed_s())

    async def read() -> int | None:
        ends.may_answer.clear()
        first = asyncio.ensure_future(node.standby_lag(TABLE, 0))
        await asyncio.to_thread(ends.hears.wait)
        later = elapsed_s() + LAG_OF_S
        monkeypatch.setattr(lags, "elapsed_s", lambda: later)
        second = asyncio.ensure_future(node.standby_lag(TABLE, 0))
        await asyncio.sleep(0)
        ends.may_answer.set()
        assert await first == 1
        return await second

    assert (asyncio.run(read()), ends.asked) == (1, 2)


@pytest.mark.parametrize(("active", "restored"), [(True, False), (False, True)])
def test_an_owner_restores_all_that_its_changelog_turns_out_to_hold(
    engine: Engine, active: bool, restored: bool
) -> None:
    """A broker that does not know yet that it leads no more tells where it ended then; a standby is always behind."""
    hold(engine, active, position=0, restored=False)
    (replica,) = engine.holdings.replicas.held.values()
    assert replica.advance(position=10, end=12) is restored
    assert replica.advance(position=12, end=12) is not restored
    assert replica.restored


def test_a_position_is_known_before_the_rows_that_tell_of_its_events(engine: Engine) -> None:
    events, changelog = Place("shop.events.v1", 0), Place("shop-changelog", 0)
    seen: list[Any] = []
    store = SimpleNamespace(apply=lambda *_: seen.append(engine.holdings.event_offsets(0)))
    batch: Any = SimpleNamespace(offsets={}, rows={changelog: SimpleNamespace(store=store)})
    engine.holdings._event_offsets = {events: 3}
    producer = cast(Any, SimpleNamespace(commit=lambda *_: {events: 7, changelog: 9}))
    Committer(producer, cast(Any, None), engine.holdings.events_written, cast(Any, None))._finish(
        batch, {changelog: {}}, b""
    )
    assert seen == [{events: 7}]


def test_few_histories_are_read_at_once(node: WorkerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a consumer of its own."""
    now = most = 0

    async def read_at(*_: object) -> list[bytes]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return []

    async def read_many() -> None:
        await asyncio.gather(*(node.records(SHOP.parking, 0, [0]) for _ in range(20)))

    monkeypatch.setattr(node_module, "read_at", read_at)
    asyncio.run(read_many())
    assert most == LOG_READERS


def test_a_worker_whose_lease_ended_is_not_ready(engine: Engine, node: WorkerNode) -> None:
    """It serves nothing, and load balancers have to know."""
    hold(engine, active=True, position=10)
    engine.assignment = assigned(engine, 7)
    engine.extend_lease(elapsed_s())
    assert node.ready()
    engine.extend_lease(elapsed_s() - LEASE_S)
    assert not node.ready()


def test_a_partition_without_a_replica_has_no_lag(node: WorkerNode) -> None:
    assert lag_of(node) is None


def test_a_worker_without_tables_says_who_owns_its_partitions(
    engine: Engine, node: WorkerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    changelog = SHOP.changelog(SHOP.parked).name
    monkeypatch.setattr(node_module, "owners", lambda _, asked: {1: "http://w"} if asked == changelog else {})
    assert node.status().owners == {"parked": {1: "http://w"}}


class FailsOnce:
    """In place of librdkafka's producers: the first fails for ever with two records, later ones write at offset 7."""

    made = 0

    def __init__(self, _: object) -> None:
        FailsOnce.made += 1
        self._fails = FailsOnce.made == 1
        self._reports: list[Callable[..., None]] = []

    def produce(self, *_: object, on_delivery: Callable[..., None]) -> None:
        self._reports.append(on_delivery)

    def poll(self, _: float) -> None:
        if self._fails and len(self._reports) < 2:
            return
        error = KafkaError(KafkaError._FATAL) if self._fails else None
        message = SimpleNamespace(
            topic=lambda: SHOP.parking.name, partition=lambda: 0, offset=lambda: 7, timestamp=lambda: (0, 0)
        )
        while self._reports:
            self._reports.pop()(error, message)


def test_a_producer_that_failed_is_replaced_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.kafka.producer.Producer", FailsOnce)
    monkeypatch.setattr(FailsOnce, "made", 0)
    node = WorkerNode(cast(Any, SimpleNamespace(topology=SHOP, settings=Settings(), engine=engine, new_consumer=None)))

    async def append() -> int:
        _, offset = await node.append(SHOP.parking, b"key", b"value", partition=0)
        return offset

    async def test() -> None:
        failed = await asyncio.gather(append(), append(), return_exceptions=True)
        assert [type(each) for each in failed] == [ProducerFailed, ProducerFailed]
        assert await append() == 7

    asyncio.run(test())
    assert FailsOnce.made == 2
