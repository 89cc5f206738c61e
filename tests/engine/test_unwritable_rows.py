"""A record that leads to a row which nobody could read again is parked; its worker goes on with the other keys.

A command holds up nothing, not even its key.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from shared.domain.decider import Decider
from shared.domain.envelope import EventCodec, EventEnvelope
from shared.domain.message import Command, Event
from shared.domain.row import RowCodec
from shared.domain.state import State
from shared.engine.processors import AggregateProcessor, Processor, ProjectionProcessor
from shared.kafka.murmur2 import partition_of
from shared.parking.parked import Parked
from shared.runtime.positions import Place
from shared.topology.projection import Projection
from shared.topology.topics import Table, Topic, Topology
from tests.engine.test_next_version import Worker
from tests.faults.simulated import Broker

pytestmark = pytest.mark.usefixtures("no_waiting")

NOW = datetime(2026, 5, 1, tzinfo=UTC)
LARGEST = 1.7e308  # twice as much is infinite, which JSON has no number for


class Poured(Event):
    TYPE = "tank.poured"

    litres: float


class Pour(Command):
    TYPE = "tank.pour"

    litres: float


class Tank(State):
    litres: float = 0.0


def poured(tank: Tank, event: Poured) -> Tank:
    return Tank.model_construct(litres=tank.litres + event.litres)


POURED = [("a", LARGEST), ("b", 1.0), ("a", LARGEST), ("a", 1.0), ("b", 1.0)]

Bound = tuple[Processor, Table, list[bytes]]
"""A processor, its table, and the records of its source."""

COMMANDS, EVENTS = Topic("tanks.commands.v1"), Topic("tanks.events.v1")
DECIDER: Decider[Pour, Poured, Tank] = Decider(
    decide=lambda command, _: [Poured(litres=command.litres)],
    evolve=poured,
    initial=Tank(),
    commands=(Pour,),
    events=(Poured,),
    state=Tank,
)
TANKS, VIEW = Table("tanks", source=COMMANDS), Table("levels", source=EVENTS)


def project(tank: Tank, event: EventEnvelope[Poured], _key: str) -> Tank:
    return poured(tank, event.data)


def projection() -> Bound:
    codec = EventCodec((Poured,))
    values = [
        codec.write(
            Poured(litres=litres),
            event_id=f"e{number}",
            aggregate_id=key,
            sequence=number,
            occurred_at=NOW,
            correlation_id="c",
        )
        for number, (key, litres) in enumerate(POURED, start=1)
    ]
    return ProjectionProcessor(Projection(VIEW, project, initial=Tank(), events=(Poured,), state=Tank)), VIEW, values


def aggregate() -> Bound:
    codec = DECIDER.command_codec
    values = [
        codec.encode(codec.wrap(Pour(litres=litres), command_id=f"c{number}", aggregate_id=key, issued_at=NOW))
        for number, (key, litres) in enumerate(POURED, start=1)
    ]
    return AggregateProcessor(DECIDER, table=TANKS, events=EVENTS), TANKS, values


def _state(type_: Any, raw: bytes) -> Any:
    return RowCodec(type_).decode_whole(raw).state


@pytest.mark.parametrize(
    ("bound", "expected"),
    [(projection, (2, (3,), "processor.failed")), (aggregate, (2, (), "command.failed"))],
)
def test_its_record_is_parked_and_the_others_are_handled(
    bound: Callable[[], Bound], expected: tuple[int, tuple[int, ...], str]
) -> None:
    processor, table, values = bound()
    topology = Topology("tanks", (COMMANDS, EVENTS), (table,), partitions=1)
    broker = Broker([topic.name for topic in topology.all_topics()], 1, random.Random(1), topology.group)
    worker = Worker(broker, "w", 0, topology=topology, processors=[processor])

    async def work() -> None:
        await worker.start()
        for (key, _), value in zip(POURED, values, strict=True):
            broker.append(table.source.name, (key.encode(), value), None)
        await worker.go_on()

    asyncio.run(work())
    stores = worker.engine.holdings.replicas._stores
    litres = {key: _state(Tank, raw).litres for key, raw in stores[table.name].scan(0)}
    assert litres == {b"a": LARGEST, b"b": 2.0}
    parked = [_state(Parked, raw) for _, raw in stores[topology.parked.name].scan(0)]
    assert [(each.offset, each.behind, each.code) for each in parked] == [expected]
    (letter,) = broker.visible(Place(topology.dead_letters.name, 0), 0)
    assert "litres" in json.loads(letter.value or b"")["reason"]


def test_it_is_parked_although_other_partitions_commit_before_it_is_tried_again() -> None:
    """Their commits end the caution that follows a failure."""
    topology = Topology("tanks", (COMMANDS, EVENTS), (TANKS,), partitions=2)
    broker = Broker([topic.name for topic in topology.all_topics()], 2, random.Random(1), topology.group)
    worker = Worker(
        broker, "w", 0, 1, topology=topology, processors=[AggregateProcessor(DECIDER, table=TANKS, events=EVENTS)]
    )
    poisoned, healthy = (next(k for k in "abcdefgh" if partition_of(k.encode(), 2) == number) for number in (0, 1))

    def pour(key: str, number: int, litres: float) -> None:
        codec = DECIDER.command_codec
        wrapped = codec.wrap(Pour(litres=litres), command_id=f"c{number}", aggregate_id=key, issued_at=NOW)
        broker.append(COMMANDS.name, (key.encode(), codec.encode(wrapped)), None)

    async def work() -> None:
        await worker.start()
        pour(poisoned, 1, LARGEST)
        await worker.go_on()  # else a fetch may bring one of them without the other, and its commit end the caution
        pour(poisoned, 2, LARGEST)
        for number in range(3, 40):
            pour(healthy, number, 1.0)
            worker.engine._pace.failures = 0  # as after a commit of the others
            await worker.engine.step()
            await worker.engine._settle()

    asyncio.run(work())
    parked = [_state(Parked, raw) for _, raw in worker.engine.holdings.replicas._stores[topology.parked.name].scan(0)]
    assert [(each.offset, each.code) for each in parked] == [(1, "command.failed")]
    assert worker.engine.aborts == 1
