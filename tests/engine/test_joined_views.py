"""Joined rows are written with the rows that they are made of, whatever is aborted, refused or taken over."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from math import inf
from typing import Any

import pytest
from structlog.testing import capture_logs

from shared.domain.row import Codec
from shared.engine.engine import Engine
from shared.engine.wiring import processors_of
from shared.parking.parked import PARKED_CODEC
from shared.topology import Join, Service
from shared.topology.topics import Table, Topic
from tests.engine.test_next_version import Worker
from tests.faults.simulated import Broker, Fault
from tests.pipelines.larder.service import (
    COOKED,
    EATEN,
    HARVESTED,
    HEAPED,
    HEAPS,
    JOIN,
    LEFT,
    MEALS,
    SERVICE,
    Left,
    Sum,
    left,
    written,
)
from tests.pipelines.larder.service import TOPOLOGY as DECLARED

pytestmark = pytest.mark.usefixtures("no_waiting")

TOPOLOGY = replace(DECLARED, topics=(HARVESTED, EATEN), partitions=2)
CROPS = ("oats", "rye", "corn", "flax")
CODECS: Mapping[Table, Codec[Any]] = {HEAPS: HEAPED.row_codec, MEALS: COOKED.row_codec, LEFT: JOIN.row_codec}
ROUNDS = 60


def new_worker(broker: Broker, name: str, service: Service = SERVICE) -> Worker:
    """With empty stores."""
    processors = processors_of(replace(service, topology=TOPOLOGY))
    return Worker(broker, name, *range(TOPOLOGY.partitions), topology=TOPOLOGY, processors=processors)


def new_broker(seed: int) -> Broker:
    names = [topic.name for topic in TOPOLOGY.all_topics()]
    return Broker(names, TOPOLOGY.partitions, random.Random(seed), TOPOLOGY.group)


def say(broker: Broker, number: int, chance: random.Random, counted: Counter[tuple[Topic, str]]) -> None:
    """counted: how many events each row of a view includes; one of no kilos ends it."""
    topic, crop, kilos = chance.choice([HARVESTED, EATEN]), chance.choice(CROPS), chance.choice([0, 0, *range(1, 10)])
    broker.append(topic.name, (crop.encode(), written(topic, crop, number, kilos)), None)
    counted[topic, crop] = counted[topic, crop] + 1 if kilos else 0


def rows(engine: Engine, table: Table) -> Mapping[str, bytes]:
    """In the store."""
    store = engine.holdings.replicas._stores[table.name]
    return {key.decode(): raw for number in range(TOPOLOGY.partitions) for key, raw in store.scan(number)}


def check(engine: Engine, said: int) -> None:
    """Every row is the join of the rows that are beside it, and together they include `said` events: all, but for what
    has ended."""
    kept = {table: {key: CODECS[table].decode(raw) for key, raw in rows(engine, table).items()} for table in CODECS}
    for crop, row in kept[LEFT].items():
        parts = [kept[HEAPS].get(crop, HEAPED.initial_row), kept[MEALS].get(crop, COOKED.initial_row)]
        assert row == JOIN.row(parts, crop)
    assert kept[LEFT].keys() == kept[HEAPS].keys() | kept[MEALS].keys()
    assert sum(row.sequence for row in kept[LEFT].values()) == said


@pytest.mark.parametrize("seed", range(5))
def test_rows_and_joined_rows_are_one_whatever_is_aborted_or_taken_over(seed: int) -> None:
    broker, chance = new_broker(seed), random.Random(seed)

    async def live() -> None:
        said, counted = count(), Counter[tuple[Topic, str]]()
        for turn, step in enumerate(["before_produce", "after_produce", "after_offsets", None]):
            worker = new_worker(broker, f"w{turn}")
            await worker.start()
            for _ in range(ROUNDS):
                say(broker, next(said), chance, counted)
                if step is not None and chance.random() < 0.2:
                    worker.producer.fault = Fault(step, "refuse")
                await worker.engine.step()
                await worker.engine._settle()
            worker.producer.fault = None
            await worker.go_on()
            check(worker.engine, counted.total())
            broker.members.discard(f"w{turn}")

    asyncio.run(live())


def test_a_joined_row_that_is_too_large_parks_the_record_of_its_view_alone() -> None:
    broker = new_broker(1)
    worker, too_large = new_worker(broker, "w"), TOPOLOGY.changelog(LEFT).name
    worker.refuse(lambda record: record.topic == too_large and b'"kilos":7' in (record.value or b""))

    async def work() -> None:
        await worker.start()
        for number, (topic, kilos) in enumerate([(HARVESTED, 3), (HARVESTED, 4), (EATEN, 1), (HARVESTED, 5)]):
            broker.append(topic.name, (b"rye", written(topic, "rye", number, kilos)), None)
            await worker.go_on()
        await worker.go_on()

    asyncio.run(work())
    check(worker.engine, said=2)  # the later harvest waits behind the one that is parked, the meal does not
    parked = [PARKED_CODEC.decode(raw).state for raw in rows(worker.engine, TOPOLOGY.parked).values()]
    assert [(each.processor, each.code, len(each.offsets)) for each in parked] == [("heaps", "record.too_large", 2)]


def test_a_joined_row_that_could_not_be_read_again_parks_the_record_of_its_view_alone() -> None:
    def unreadable(heap: Sum, meal: Sum, crop: str) -> Left:
        joined = left(heap, meal, crop)
        return joined.model_copy(update={"kilos": inf}) if heap.last == 4 else joined

    broker = new_broker(1)
    worker = new_worker(broker, "w", replace(SERVICE, joins=[Join(LEFT, unreadable, state=Left)]))
    for number, (topic, crop, kilos) in enumerate(
        [(HARVESTED, "rye", 3), (HARVESTED, "rye", 4), (EATEN, "rye", 1), (HARVESTED, "oats", 5)]
    ):
        broker.append(topic.name, (crop.encode(), written(topic, crop, number, kilos)), None)
    asyncio.run(worker.work())
    check(worker.engine, said=3)
    (parked,) = [PARKED_CODEC.decode(raw).state for raw in rows(worker.engine, TOPOLOGY.parked).values()]
    assert (parked.processor, len(parked.offsets)) == ("heaps", 1)


def test_a_join_that_is_new_to_views_with_rows_says_what_it_misses() -> None:
    """Its other keys come with their next event, or after `reprocess`."""
    broker = new_broker(1)
    broker.append(HARVESTED.name, (b"rye", written(HARVESTED, "rye", 0, 3)), None)
    apart = replace(TOPOLOGY, tables=(HEAPS, MEALS))
    before = Worker(
        broker, "before", 0, 1, topology=apart, processors=processors_of(replace(SERVICE, topology=apart, joins=[]))
    )
    asyncio.run(before.work())
    broker.members.discard("before")
    with capture_logs() as said:
        asyncio.run(new_worker(broker, "after").work())
    warned = [line["view"] for line in said if line["event"].startswith("a view has no rows")]
    assert warned == ["larder/left"]
