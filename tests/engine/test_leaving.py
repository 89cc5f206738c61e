"""A worker told to give up its partitions does so, whatever its brokers do and whatever else happens just then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest

from shared.engine.answers import Answers
from shared.engine.engine import Engine
from shared.engine.membership import Assignment
from shared.engine.sources import SourceGone, first_position
from shared.kafka.offsets import OffsetsUnknown
from shared.kafka.transactions import TransactionAborted
from shared.runtime.positions import Place
from tests.engine.test_turns import FACTS, SHOP, Noting
from tests.faults.simulated import Broker, FakeOffsets, FakeProducer, FakeReader, FakeStore, membership

PLACE = Place(FACTS.name, 0)
DEADLINE_S = 20.0


class Away(FakeOffsets):
    """The offsets of brokers that do not answer."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.asked = threading.Event()

    def committed(self, _group: str, places: Iterable[Place]) -> dict[Place, int | None]:
        self.asked.set()
        raise OffsetsUnknown("nobody answers")


class Slow(FakeOffsets):
    """Answers once it is allowed to, with a committed offset that is not in the log."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.asked = threading.Event()
        self.answers = threading.Event()

    def committed(self, _group: str, places: Iterable[Place]) -> dict[Place, int | None]:
        self.asked.set()
        self.answers.wait(DEADLINE_S)
        return dict.fromkeys(places, 7)


class Going(Away):
    """The offsets of brokers that answer until `gone`."""

    gone = False

    def committed(self, group: str, places: Iterable[Place]) -> dict[Place, int | None]:
        return super().committed(group, places) if self.gone else FakeOffsets.committed(self, group, places)

    def starts(self, places: Iterable[Place]) -> dict[Place, int]:
        self.asked.set()
        return super().starts(places)


class Held:
    """A producer whose commit fails once it is allowed to."""

    def __init__(self) -> None:
        self.commits = threading.Event()
        self.fails = threading.Event()

    def forget_pending(self, _partitions: object, _member: bytes) -> None: ...

    def send(self, _records: object) -> None: ...

    def commit(self, _offsets: object, _member: bytes) -> None:
        self.commits.set()
        self.fails.wait(DEADLINE_S)
        raise TransactionAborted("timed out")


class Reading(FakeReader):
    async def getmany(self, **limits: Any) -> dict[Place, list[Any]]:
        await asyncio.sleep(0)
        return await super().getmany(**limits)


@asynccontextmanager
async def running(offsets: Callable[[Broker], Any], producer: Any = None) -> AsyncIterator[tuple[Engine, Any]]:
    """An engine that is taking over its only partition."""
    parked = SHOP.parked.name
    topics = [FACTS.name, *(topic.name for topic in SHOP.all_topics())]
    broker, nothing = Broker(topics, SHOP.partitions, Random(0), SHOP.group), cast(Any, None)
    asked, store = offsets(broker), cast(Any, FakeStore(parked))
    store.open(PLACE.number, "id")
    reader = cast(Any, Reading(broker, Random(0)))
    broker.members.add("w")
    producer = producer or cast(Any, FakeProducer(broker, "w"))
    engine = Engine(SHOP, [Noting()], {parked: store}, reader, nothing, producer, asked, lambda: None, broker.sign, 1.0)
    await engine.start()
    try:
        places = frozenset({PLACE, Place(SHOP.changelog(SHOP.parked).name, PLACE.number)})
        assignment = Assignment(places, frozenset(), membership(broker, "w"), 0, "w")
        taking = asyncio.create_task(engine.assign(assignment))
        await asyncio.to_thread(asked.asked.wait, DEADLINE_S)
        yield engine, asked
        await taking
    finally:
        await engine.stop()


def within_deadline(work: Callable[[], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work()

    asyncio.run(limited())


def test_a_worker_can_leave_while_it_takes_over_from_unavailable_brokers() -> None:
    async def leave() -> None:
        async with running(Away) as (engine, _):
            await engine.leave()

    within_deadline(leave)


def test_a_worker_can_leave_while_its_commit_fails_on_unavailable_brokers() -> None:
    async def leave() -> None:
        producer = Held()
        async with running(Going, producer) as (engine, offsets):
            offsets.broker.append(FACTS.name, (b"a", b""), None)
            await asyncio.to_thread(producer.commits.wait, DEADLINE_S)
            offsets.gone = True
            leaving = asyncio.create_task(engine.leave())
            await asyncio.sleep(0)
            producer.fails.set()
            await leaving

    within_deadline(leave)


def test_releasing_partitions_does_not_wait_for_a_worker_that_stops() -> None:
    async def release() -> None:
        async with running(Slow) as (engine, offsets):
            released = asyncio.create_task(engine.release())
            await asyncio.sleep(0)
            offsets.answers.set()
            await released

    within_deadline(release)


def test_a_cancelled_wait_for_an_outcome_does_not_keep_a_worker_from_stopping() -> None:
    async def end() -> None:
        waiting = Answers()
        waiting.expect("account-1", "command-1", 0).cancel()
        waiting.end()

    within_deadline(end)


@pytest.mark.parametrize(("committed", "position"), [(None, 3), (3, 3), (5, 5), (9, 9)])
def test_reading_resumes_where_the_group_has_committed(committed: int | None, position: int) -> None:
    assert first_position(PLACE, committed, start=3, end=9) == position


@pytest.mark.parametrize(
    ("committed", "reason"),
    [
        (2, "offsets 2 to 2 were removed .*; fix: accept the loss by"),
        (10, "the log ends at 9: was it recreated.* fix: .* or reset the group's offsets in it, raise `version`"),
    ],
)
def test_a_committed_offset_outside_the_log_stops_the_worker(committed: int, reason: str) -> None:
    with pytest.raises(SourceGone, match=reason):
        first_position(PLACE, committed, start=3, end=9)
