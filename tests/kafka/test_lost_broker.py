"""A broker is lost for good: its clients find the brokers that took over from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from shared.dev.embedded import EmbeddedKafka
from shared.group.app import WorkerApp
from shared.kafka.brokers import Brokers, BrokersUnavailable
from shared.kafka.offsets import Offsets, OffsetsUnknown
from shared.kafka.transactions import Record, TransactionAborted, TransactionalProducer, group_metadata
from shared.operations.provision import provision
from shared.runtime import failpoints
from shared.runtime.clock import elapsed_s
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.tables.replicas import Replica
from shared.topology.topics import Topic, Topology
from tests.waiting import Deadline, eventually

pytestmark = pytest.mark.long

EVENTS = Topic("orders.events.v1")
TOPOLOGY = Topology("orders", (EVENTS,), partitions=8)
PLACES = [Place(EVENTS.name, partition) for partition in range(TOPOLOGY.partitions)]
GROUP = "orders"
DEADLINE_S = 60.0


@pytest.fixture
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    root = tmp_path_factory.mktemp("kafka")
    with EmbeddedKafka(root / "data", root / "logs", brokers=3) as kafka:
        provision([TOPOLOGY], Settings(bootstrap=kafka.bootstrap, replication=3, min_isr=2))
        yield kafka


def test_a_silent_leader_hides_no_lag_but_that_of_what_it_leads(kafka: EmbeddedKafka) -> None:
    """To the standbys of a worker, which knew the lags of all its partitions before."""
    settings = Settings(bootstrap=kafka.bootstrap)
    engine = WorkerApp(TOPOLOGY, [], settings, cast(Any, None)).engine
    changelog, silent = TOPOLOGY.changelog(TOPOLOGY.parked).name, 2
    places = [Place(changelog, partition) for partition in range(TOPOLOGY.partitions)]
    leaders = leaders_of(kafka.bootstrap, changelog)
    assert set(leaders) == {1, 2, 3}

    async def lags() -> list[int | None]:
        for place in places:
            replica = Replica(place, cast(Any, None), False, 0, target=0, end=0, restored=True)
            engine.holdings.replicas.held[place] = replica
        engine.extend_lease(elapsed_s())
        return await asyncio.gather(*(engine.lags.of(TOPOLOGY.parked, place.number) for place in places))

    async def ask() -> None:
        deadline = Deadline(DEADLINE_S)
        while await lags() != [0] * len(places) or [engine.lags.leaders.leader(place) for place in places] != leaders:
            deadline.check("all lags and leaders are known")
        kafka.pause(silent)
        while None not in (found := await lags()):
            deadline.check("it is frozen")
        assert found == [None if leader == silent else 0 for leader in leaders]
        again = zip(await lags(), leaders, strict=True)
        assert {lag for lag, leader in again if leader != silent} == {0}
        kafka.kill(silent)
        while await lags() != [0] * len(places):
            deadline.check("others lead what it led")
        await engine.lags.leaders.stop()

    asyncio.run(ask())


def test_a_commit_under_way_ends_when_the_groups_coordinator_is_lost(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = TransactionalProducer(kafka.bootstrap, "orders-1")
    assert commit(producer).lost_membership  # the group's coordinator says so, so the client knows it from now on
    coordinator = coordinator_of(kafka.bootstrap)

    def lose(step: str) -> None:
        if step == "before_offsets":
            kafka.kill(coordinator)
            await_gone(kafka.bootstrap, coordinator)

    monkeypatch.setattr(failpoints, "reached", lose)
    ThreadPoolExecutor(1).submit(commit, producer).result(DEADLINE_S)
    monkeypatch.undo()
    assert commit(producer).lost_membership  # the new coordinator says so


def ends_for_workers(bootstrap: str) -> Callable[[], Mapping[Any, int]]:
    return partial(Offsets(bootstrap).ends, PLACES)


def ends_for_pipelines(bootstrap: str) -> Callable[[], Mapping[Any, int]]:
    return partial(Brokers(bootstrap).settled_ends, EVENTS.name)


def test_the_ends_of_a_lost_broker_are_unknown_until_it_has_a_successor(kafka: EmbeddedKafka) -> None:
    askers = [asker(kafka.bootstrap) for asker in (ends_for_workers, ends_for_pipelines)]
    assert [set(answered(ends).values()) for ends in askers] == [{0}, {0}]
    kafka.kill(2)
    with ThreadPoolExecutor() as pool:
        assert [set(ends.values()) for ends in pool.map(answered, askers)] == [{0}, {0}]


def answered(ends: Callable[[], Mapping[Any, int]]) -> Mapping[Any, int]:
    """The first answer; until then, only that the ends are unknown."""
    deadline = Deadline(DEADLINE_S)
    while True:
        try:
            return ends()
        except (OffsetsUnknown, BrokersUnavailable) as unknown:
            deadline.check(unknown)


def commit(producer: TransactionalProducer) -> TransactionAborted:
    """How a commit fails for a member that the group does not know."""
    producer.send([Record(EVENTS.name, b"o-1", b"{}")])
    with pytest.raises(TransactionAborted) as aborted:
        producer.commit({PLACES[0]: 1}, group_metadata(GROUP, 1, "nobody"))
    return aborted.value


def coordinator_of(bootstrap: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # unnamed, the client would be collected before it answers
    return int(admin.describe_consumer_groups([GROUP])[GROUP].result().coordinator.id)


def await_gone(bootstrap: str, broker: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    eventually(lambda: broker not in known_brokers(admin))


def leaders_of(bootstrap: str, topic: str) -> list[int]:
    """By partition."""
    partitions = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic).topics[topic].partitions
    return [partitions[number].leader for number in sorted(partitions)]


def known_brokers(admin: AdminClient) -> set[int]:
    try:
        return set(admin.list_topics(timeout=2).brokers)
    except KafkaException:
        return set()
