"""The leader of a partition refuses connections while a worker reads its log: the worker says so and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from math import inf
from threading import Event
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import Producer

from shared.domain.errors import NotReady
from shared.domain.row import RowCodec
from shared.engine import retries
from shared.engine.processors import AggregateProcessor
from shared.engine.retries import OperatorRequests
from shared.group.app import WorkerApp
from shared.kafka import lookup as log_module
from shared.kafka.lookup import read_at
from shared.kafka.producer import producer_config
from shared.operations.provision import provision
from shared.runtime.clock import elapsed_s
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.tables.replicas import Replica
from shared.tables.tail import Changelogs
from tests.accounts.domain.decide import DECIDER
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from tests.faults.proxy import Proxy, broker_behind
from tests.waiting import Deadline

pytestmark = pytest.mark.broker

DEADLINE_S = 120.0
PATIENCE_S = 1.0  # the leader is asked about ten times meanwhile
NOBODY = "127.0.0.1:1"
PLACE = Place(EVENTS.name, 0)
WRITTEN, VALUE = Place(EVENTS.name, 1), b"{}"  # its record can be read while its leader is there


class Leader:
    """The only broker. Its clients reach it through a proxy."""

    def __init__(self, proxy: Proxy, away: Event) -> None:
        self.bootstrap = proxy.address
        self._proxy = proxy
        self._away = away

    def freeze(self) -> None:
        self._proxy.hold()

    def leave(self) -> None:
        self._away.set()
        self._proxy.cut()

    def come_back(self) -> None:
        self._away.clear()
        self._proxy.heal()


@pytest.fixture(scope="module")
def only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leader]:
    away = Event()
    with Proxy(lambda: NOBODY if away.is_set() else kafka.bootstrap) as proxy:
        kafka = broker_behind(proxy, tmp_path_factory.mktemp("kafka"))
        with kafka:
            provision([TOPOLOGY], Settings(bootstrap=kafka.bootstrap))
            _write(kafka.bootstrap)
            yield Leader(proxy, away)


def _write(bootstrap: str) -> None:
    producer = Producer(producer_config(bootstrap))
    producer.produce(WRITTEN.topic, VALUE, b"key", WRITTEN.number)
    assert producer.flush(DEADLINE_S) == 0


@pytest.fixture
def leader(only: Leader) -> Iterator[Leader]:
    yield only
    only.come_back()


@pytest.fixture
def worker(leader: Leader) -> WorkerApp:
    processors = [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)]
    return WorkerApp(TOPOLOGY, processors, Settings(bootstrap=leader.bootstrap), cast(Any, None))


@pytest.fixture
def new_consumer(worker: WorkerApp) -> Callable[..., AIOKafkaConsumer]:
    return worker.new_consumer


@pytest.fixture
def deserted(
    new_consumer: Callable[..., AIOKafkaConsumer], leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., AIOKafkaConsumer]:
    """Makes consumers whose leader leaves once they know it, before they read."""

    def make(*args: Any) -> AIOKafkaConsumer:
        consumer = new_consumer(*args)
        start = consumer.start

        async def start_and_lose() -> None:
            await start()
            await consumer.beginning_offsets([TopicPartition(*PLACE)])
            leader.leave()

        monkeypatch.setattr(consumer, "start", start_and_lose)
        return consumer

    return make


def run(work: Awaitable[None]) -> None:
    """Run it, and wait until no task is left: of a consumer that is not stopped, one asks for metadata for ever."""

    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    asyncio.run(limited())


def test_a_history_that_it_leads_is_not_ready(
    new_consumer: Callable[..., AIOKafkaConsumer],
    deserted: Callable[..., AIOKafkaConsumer],
    leader: Leader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def read() -> None:
        monkeypatch.setattr(log_module, "TIMEOUT_S", DEADLINE_S)
        assert await read_at(new_consumer, WRITTEN, [0]) == [VALUE]
        monkeypatch.setattr(log_module, "TIMEOUT_S", PATIENCE_S)
        for _ in range(3):
            leader.come_back()
            with pytest.raises(NotReady, match=f"{EVENTS.name} can't be read now"):
                await read_at(deserted, WRITTEN, [0])

    run(read())


def test_a_parked_record_that_it_leads_is_unread(
    new_consumer: Callable[..., AIOKafkaConsumer],
    deserted: Callable[..., AIOKafkaConsumer],
    leader: Leader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def reread() -> None:
        monkeypatch.setattr(retries, "REREAD_S", DEADLINE_S)
        there, _ = await OperatorRequests(TOPOLOGY, {}, new_consumer)._reread(WRITTEN, [0])
        assert there.keys() == {0}
        monkeypatch.setattr(retries, "REREAD_S", PATIENCE_S)
        for _ in range(3):
            leader.come_back()
            found, missing = await OperatorRequests(TOPOLOGY, {}, deserted)._reread(WRITTEN, [0])
            assert (found, missing.code) == ({}, "unread")

    run(reread())


def test_a_stream_of_changes_ends_when_its_follower_goes(
    new_consumer: Callable[..., AIOKafkaConsumer], leader: Leader
) -> None:
    changelog = TOPOLOGY.changelog(ACCOUNTS).name

    async def follow() -> None:
        for _ in range(3):
            leader.come_back()
            after, logs = dict.fromkeys(range(TOPOLOGY.partitions)), Changelogs(new_consumer)
            async with logs.read(changelog, TOPOLOGY.partitions, RowCodec(dict), after) as feed:
                leader.leave()
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE_S):
                        await anext(feed.changes)

    run(follow())


@pytest.mark.parametrize("away", [False, True], ids=["it is there", "it is away"])
def test_a_caller_that_is_cancelled_stays_so_while_its_reader_stops(
    new_consumer: Callable[..., AIOKafkaConsumer], leader: Leader, away: bool
) -> None:
    async def stop_after(turns: int) -> None:
        """Cancel the caller of `stop` after so many turns of the loop."""
        reader = new_consumer()
        await reader.start()
        reader.assign([TopicPartition(*PLACE)])
        reader.seek(TopicPartition(*PLACE), 0)
        await _read_in_vain(reader, PATIENCE_S / 5)
        if away:
            leader.leave()
            await _read_in_vain(reader, PATIENCE_S)
        stopping = asyncio.create_task(reader.stop())
        for _ in range(turns):
            await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping

    async def stop() -> None:
        for turns in range(1, 4):
            leader.come_back()
            await stop_after(turns)

    run(stop())


async def _read_in_vain(reader: AIOKafkaConsumer, patience_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await reader.getmany(TopicPartition(*PLACE), timeout_ms=int(DEADLINE_S * 1_000))


@pytest.mark.parametrize("goes", [Leader.freeze, Leader.leave])
def test_a_standby_knows_no_lag_while_the_leader_does_not_answer(
    worker: WorkerApp, leader: Leader, goes: Callable[[Leader], None]
) -> None:
    """It has applied all that it has heard of; and it knows at once how much it has missed when it hears again."""
    engine, place = worker.engine, Place(TOPOLOGY.changelog(ACCOUNTS).name, 0)
    engine.holdings.replicas.held[place] = Replica(
        place, cast(Any, None), active=False, position=0, target=0, end=0, restored=True
    )

    async def test() -> None:
        assert await lag() == 0
        goes(leader)
        assert await lag() is None
        leader.come_back()
        deadline = Deadline(DEADLINE_S)
        while await lag() != 0:
            deadline.check("the leader is back")
        await engine.lags.leaders.stop()

    async def lag() -> int | None:
        engine.holdings.replicas.held[place].end_known_at = -inf
        engine.extend_lease(elapsed_s())
        return await engine.lags.of(ACCOUNTS, 0)

    asyncio.run(test())
