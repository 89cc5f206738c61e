"""An event that makes a view's row too large is parked with its key, by that view alone, wherever it is in a batch."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime

import pytest

from shared.domain.envelope import EventCodec, EventEnvelope
from shared.domain.message import Event
from shared.domain.row import RowCodec
from shared.domain.state import State
from shared.engine.processors import ProjectionProcessor
from shared.parking.parked import PARKED_CODEC
from shared.topology.projection import Projection
from shared.topology.topics import Table, Topic, Topology
from tests.engine.test_next_version import Worker
from tests.faults.simulated import Broker

pytestmark = pytest.mark.usefixtures("no_waiting")

EVENTS = Topic("tanks.events.v1")
NOTES, COUNTS = Table("notes", source=EVENTS), Table("counts", source=EVENTS)
TANKS = Topology("tanks", (EVENTS,), (NOTES, COUNTS), partitions=1)
LIMIT_BYTES = 1_000
KEYS = "abcdefg"
EACH = 40  # events of a key, in turn: of one key they make too long a text


class Noted(Event):
    TYPE = "tank.noted"

    text: str


class Notes(State):
    text: str = ""


class Count(State):
    events: int = 0


def noted(notes: Notes, event: EventEnvelope[Noted], _key: str) -> Notes:
    return Notes(text=notes.text + event.data.text)


def counted(seen: Count, _event: EventEnvelope[Noted], _key: str) -> Count:
    return Count(events=seen.events + 1)


VIEWS = [
    ProjectionProcessor(Projection(NOTES, noted, initial=Notes(), events=(Noted,), state=Notes)),
    ProjectionProcessor(Projection(COUNTS, counted, initial=Count(), events=(Noted,), state=Count)),
]


def test_the_others_are_handled() -> None:
    broker = Broker([topic.name for topic in TANKS.all_topics()], 1, random.Random(1), TANKS.group)
    worker = Worker(broker, "w", 0, topology=TANKS, processors=VIEWS)
    worker.refuse(lambda record: len(record.value or b"") > LIMIT_BYTES)
    codec: EventCodec[Noted] = EventCodec((Noted,))

    async def work() -> None:
        await worker.start()
        for number in range(EACH * len(KEYS)):
            key = KEYS[number % len(KEYS)]
            text = "x" * 100 if key == "c" else "x"
            story = {"event_id": f"e{number}", "aggregate_id": key, "correlation_id": "c"}
            at = datetime(2026, 5, 1, tzinfo=UTC)
            value = codec.write(Noted(text=text), **story, sequence=number // len(KEYS) + 1, occurred_at=at)
            broker.append(EVENTS.name, (key.encode(), value), None)
        for _ in range(5):
            await worker.go_on()

    asyncio.run(work())
    stores = worker.engine.holdings.replicas._stores
    lengths = {key.decode(): len(RowCodec(Notes).decode(raw).state.text) for key, raw in stores[NOTES.name].scan(0)}
    fitting = lengths.pop("c")
    assert 500 < fitting < LIMIT_BYTES
    assert lengths == dict.fromkeys(set(KEYS) - {"c"}, EACH)
    assert {RowCodec(Count).decode(raw).state.events for _, raw in stores[COUNTS.name].scan(0)} == {EACH}
    (parked,) = (PARKED_CODEC.decode(raw).state for _, raw in stores[TANKS.parked.name].scan(0))
    assert (parked.processor, parked.code) == (NOTES.name, "record.too_large")
    assert len(parked.offsets) == EACH - fitting // 100
