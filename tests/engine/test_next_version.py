"""The next version of a service waits for `rebuild` where there is a past, and begins by itself where there is none."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from services.accounts.domain.decide import DECIDER
from services.accounts.topology import ACCOUNTS, COMMANDS, EVENTS
from shared.kafka.transactions import group_metadata
from shared.read_model import ReadModel
from shared.streams import engine as engine_module
from shared.streams.engine import Assignment, Engine, NotRebuilt, Superseded
from shared.streams.processors import Aggregate, Processor, Projection, Rekey, with_history
from shared.topology import Topology
from tests.faults.load import command
from tests.faults.simulated import Broker, FakeOffsets, FakeProducer, FakeReader, FakeStore, Fault

NEXT = Topology("accounts", (COMMANDS, EVENTS), (ACCOUNTS,), partitions=2, version=2, history=EVENTS)
CHANGELOGS = [NEXT.changelog(table).name for table in NEXT.all_tables()]
SOURCES = [NEXT.parking.name, COMMANDS.name, EVENTS.name]
DECIDES = with_history(NEXT, [Aggregate(DECIDER, table=ACCOUNTS, events=EVENTS)])
VIEW = Projection(ReadModel(ACCOUNTS, lambda view, *_: view, initial=0, events=(), state=int))
COPIES = Rekey({COMMANDS: lambda _: []}, source=EVENTS, events=[])
AFTER_NEXT = replace(NEXT, version=3).group
OPEN = b"a-1", command("a-1", "c1", "account.open", {})


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "POLL_WAIT_MS", 0)
    monkeypatch.setattr(engine_module, "RETRY_PAUSE_S", 0.0)


@pytest.fixture
def broker() -> Broker:
    return Broker([*CHANGELOGS, *SOURCES], NEXT.partitions, random.Random(1), NEXT.group)


class Worker:
    """An engine of the next version that has just been given these partitions."""

    def __init__(self, broker: Broker, name: str, *partitions: int, processors: Sequence[Processor] = DECIDES) -> None:
        places = {TopicPartition(topic, number) for topic in [*CHANGELOGS, *SOURCES] for number in partitions}
        broker.members.add(name)
        self.producer = FakeProducer(broker, name)
        self.engine = Engine(
            NEXT,
            processors,
            stores=cast(Any, {table.name: FakeStore(table.name) for table in NEXT.all_tables()}),
            reader=cast(Any, FakeReader(broker, broker.chance)),
            consumer=cast(Any, None),
            producer=cast(Any, self.producer),
            offsets=cast(Any, FakeOffsets(broker)),
            alive=lambda: None,
            lease_s=10.0,
        )
        self.engine.assignment = Assignment(
            frozenset(places), frozenset(), group_metadata("accounts", 0, name), 0, name
        )

    async def start(self) -> None:
        assert self.engine.assignment is not None
        await self.engine._take_over(self.engine.assignment)

    async def work(self) -> None:
        await self.start()
        for _ in range(30):
            await self.engine._turn_or_heal()
        await self.engine._settle()


def events(broker: Broker) -> int:
    return sum(len(list(broker.visible((EVENTS.name, number), 0))) for number in range(NEXT.partitions))


def test_where_nothing_ever_was_it_needs_no_rebuild(broker: Broker) -> None:
    async def begin() -> None:
        broker.append(COMMANDS.name, OPEN, None)  # a neighbour was faster
        await Worker(broker, "first", 0, 1).work()
        assert events(broker) == 1
        for number in range(NEXT.partitions):  # one of them has seen no record
            await Worker(broker, f"later-{number}", number).start()

    asyncio.run(begin())


def test_a_first_commit_that_fails_does_not_stop_it(broker: Broker) -> None:
    async def begin() -> None:
        broker.append(COMMANDS.name, OPEN, None)
        worker = Worker(broker, "first", 0, 1)
        worker.producer.fault = Fault("after_offsets", "refuse")
        await worker.work()

    asyncio.run(begin())
    assert events(broker) == 1


@pytest.mark.parametrize("number", range(NEXT.partitions))
def test_where_something_was_it_waits_for_rebuild_wherever_that_lies(broker: Broker, number: int) -> None:
    broker.append(EVENTS.name, OPEN, None)
    with pytest.raises(NotRebuilt, match="accounts-v2 has no position, and accounts"):
        asyncio.run(Worker(broker, "first", number).start())


def test_it_can_get_a_history_without_a_rebuild(broker: Broker) -> None:
    """Its chapters are read from the log's start; only what is decided or shown must have been rebuilt."""
    broker.append(EVENTS.name, OPEN, None)
    broker.committed[COMMANDS.name, 0] = 0
    for number in range(NEXT.partitions):
        asyncio.run(Worker(broker, f"w{number}", number).start())


@pytest.mark.parametrize("processors", [DECIDES, [VIEW, COPIES]])
def test_it_does_not_go_on_behind_the_one_after_it(broker: Broker, processors: Sequence[Processor]) -> None:
    broker.committed[COMMANDS.name, 0] = 5
    broker.others[AFTER_NEXT] = {(COMMANDS.name, 1): 5}
    with pytest.raises(Superseded, match=r"accounts-v3 went on from here.* `version` 4 and `rebuild accounts`"):
        asyncio.run(Worker(broker, "late", 0, processors=processors).start())


def test_views_may_go_on_behind_those_of_the_one_after_them(broker: Broker) -> None:
    broker.committed[COMMANDS.name, 0] = 0
    broker.others[AFTER_NEXT] = {(COMMANDS.name, 1): 5}
    asyncio.run(Worker(broker, "late", 0, processors=[VIEW]).start())
