"""Aggregates that end go on at the next sequence, whoever takes over, and whatever fails in between.

On a simulated broker: an engine's worth of what tests/unit/test_ending.py shows of one record after another.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, cast

import pytest

from shared.domain.decider import fold
from shared.domain.envelope import EventEnvelope
from shared.engine import lagging
from shared.engine.retries import NO_MORE_AT_ONCE, OperatorRequests
from shared.engine.versions import TopicMadeAgain
from shared.engine.wiring import processors_of, wired
from shared.parking.parked import Failure, OperatorRequest
from shared.runtime.positions import Place
from shared.testing.conversation import MemoryRecord
from shared.topology.declaration import Service
from shared.topology.topics import Table
from tests.carts.domain import DECIDER, INITIAL, AddItem, Cart, CheckedOut, CheckOut, ItemAdded
from tests.carts.projections import PROJECTIONS, Waiting
from tests.carts.service import SERVICE
from tests.carts.topology import CARTS, COMMANDS, EVENTS, TOPOLOGY, WAITING
from tests.engine.test_next_version import Worker
from tests.engine.test_take_over import OldEnds
from tests.faults.load import command
from tests.faults.simulated import TRANSACTION_STEPS, Broker, Crash, FakeOffsets, Fault

pytestmark = pytest.mark.usefixtures("no_waiting")

PLACES = [Place(topic.name, number) for topic in TOPOLOGY.all_topics() for number in range(TOPOLOGY.partitions)]
NUMBERS = count(1)


@pytest.fixture(params=[0.0, 1e9], ids=["index follows", "index lags"])
def lag(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long the history index follows later."""
    monkeypatch.setattr(lagging, "LAG_S", request.param)
    return float(request.param)


@pytest.fixture
def broker() -> Broker:
    return Broker(
        [topic.name for topic in TOPOLOGY.all_topics()], TOPOLOGY.partitions, random.Random(1), TOPOLOGY.group
    )


def worker(broker: Broker, name: str, service: Service = SERVICE) -> Worker:
    return Worker(broker, name, 0, 1, topology=TOPOLOGY, processors=wired(TOPOLOGY, processors_of(service)))


def add(broker: Broker, cart: str = "ann", item: str = "tea") -> None:
    broker.append(COMMANDS.name, (cart.encode(), command(cart, f"c{next(NUMBERS)}", "cart.add", {"item": item})), None)


def check_out(broker: Broker, cart: str = "ann") -> None:
    broker.append(COMMANDS.name, (cart.encode(), command(cart, f"c{next(NUMBERS)}", "cart.check_out", {})), None)


def events(broker: Broker) -> list[EventEnvelope[Any]]:
    records = (read for place in PLACES if place.topic == EVENTS.name for read in broker.visible(place, 0))
    return [DECIDER.event_codec.decode(read.value) for read in records]


def rows(broker: Broker, changelog: str) -> dict[bytes | None, bytes | None]:
    """The last of each key."""
    return {read.key: read.value for place in PLACES if place.topic == changelog for read in broker.visible(place, 0)}


@pytest.mark.usefixtures("lag")
def test_whoever_takes_over_begins_it_again_at_the_next_sequence(broker: Broker) -> None:
    add(broker)
    check_out(broker)
    asyncio.run(worker(broker, "w").work())
    assert rows(broker, TOPOLOGY.changelog(CARTS).name) == {b"ann": None}
    add(broker)
    asyncio.run(worker(broker, "v").work())
    assert [event.sequence for event in events(broker)] == [1, 2, 3]


def test_a_partition_of_which_no_aggregate_ever_had_a_row_can_be_taken_over(broker: Broker) -> None:
    """Each began and ended in one command. An empty changelog would look like that of a table with another name."""

    def at_once(command: AddItem | CheckOut, _: Cart) -> list[ItemAdded | CheckedOut]:
        return [ItemAdded(item="tea"), CheckedOut()]

    service = replace(SERVICE, decider=replace(DECIDER, decide=at_once))
    for name in ("w", "v"):
        add(broker)
        asyncio.run(worker(broker, name, service).work())
    assert [event.sequence for event in events(broker)] == [1, 2, 3, 4]


@pytest.mark.usefixtures("lag")
def test_where_it_goes_on_is_believed_of_no_broker_that_leads_no_more(broker: Broker) -> None:
    add(broker)
    check_out(broker)
    asyncio.run(worker(broker, "w").work())
    add(broker)
    next_owner = worker(broker, "v")
    assert TOPOLOGY.history_index is not None
    index = TOPOLOGY.changelog(TOPOLOGY.history_index).name
    old = OldEnds(broker, {place: 0 for place in PLACES if place.topic == index})
    next_owner.engine._take_over._offsets = cast(Any, old)
    asyncio.run(next_owner.work())
    assert [event.sequence for event in events(broker)] == [1, 2, 3]


@pytest.mark.usefixtures("lag")
@pytest.mark.parametrize("step", TRANSACTION_STEPS)
@pytest.mark.parametrize("kind", ["refuse", "crash"])
def test_an_end_that_fails_at_any_step_of_its_commit_takes_effect_once(broker: Broker, step: str, kind: str) -> None:
    add(broker)
    asyncio.run(worker(broker, "w").work())
    check_out(broker)
    fails = worker(broker, "w")
    fails.producer.fault = Fault(step, kind)
    with suppress(Crash):
        asyncio.run(fails.work())
    add(broker)
    asyncio.run(worker(broker, "w").work())  # the broker aborts what a predecessor of this name has left open
    assert [(event.sequence, event.type) for event in events(broker)] == [
        (1, "cart.item_added"), (2, "cart.checked_out"), (3, "cart.item_added")
    ]  # fmt: skip


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_view_whose_source_is_read_again_brings_nothing_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """As for the history index of the next version. Nothing is written again, so no stream tells of it."""
    monkeypatch.setattr(lagging, "LAG_S", 0.0)
    add(broker)
    check_out(broker)
    add(broker, "bob")
    asyncio.run(worker(broker, "w").work())
    changelog = TOPOLOGY.changelog(WAITING).name
    before = [read.offset for place in PLACES if place.topic == changelog for read in broker.visible(place, 0)]
    for number in range(TOPOLOGY.partitions):
        place = Place(EVENTS.name, number)
        broker.committed[place] = min(position, broker.committed[place])
    asyncio.run(worker(broker, "v").work())
    assert [read.offset for place in PLACES if place.topic == changelog for read in broker.visible(place, 0)] == before
    check_out(broker, "bob")
    add(broker)
    asyncio.run(worker(broker, "w").work())
    assert {key for key, value in rows(broker, changelog).items() if value is not None} == {b"ann"}


def test_a_row_that_a_retry_has_ended_stays_so_when_its_source_is_read_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for another view of that source. The last event by itself would give a row, as of any sum."""
    monkeypatch.setattr(lagging, "LAG_S", 0.0)
    healed = False

    def left(view: Waiting | None, event: EventEnvelope[ItemAdded], cart: str) -> Waiting | None:
        items = (view.items if view else 0) + int(event.data.item)
        if cart == "ann" and not items and not healed:
            raise ValueError("a bug")
        return Waiting(items=items) if items else None

    async def reread(_: object, place: Place, offsets: Sequence[int]) -> tuple[dict[int, Any], Failure]:
        reads = (read for read in broker.visible(place, 0) if read.offset in offsets)
        records = (MemoryRecord(place.topic, read.key or b"", read.value or b"", read.offset) for read in reads)
        return {record.offset: record for record in records}, NO_MORE_AT_ONCE

    monkeypatch.setattr(OperatorRequests, "_reread", reread)
    service = replace(SERVICE, projections=(replace(PROJECTIONS[0], project=left, events=(ItemAdded,)), PROJECTIONS[1]))
    for cart, item in (("bob", "1"), ("bob", "-1"), ("ann", "3"), ("bob", "2"), ("bob", "-2"), ("ann", "-3")):
        add(broker, cart, item)
    asyncio.run(worker(broker, "w", service).work())
    healed = True
    retry = OperatorRequest(action="retry", id=f"{WAITING.name}/0/ann")
    broker.append(TOPOLOGY.parking.name, retry.record, None)
    asyncio.run(worker(broker, "v", service).work())
    changelog = TOPOLOGY.changelog(WAITING).name
    assert set(rows(broker, changelog).values()) == {None}
    broker.committed[Place(EVENTS.name, 0)] = 0
    asyncio.run(worker(broker, "w", service).work())
    assert set(rows(broker, changelog).values()) == {None}


@pytest.mark.parametrize("table", [CARTS, WAITING], ids=lambda table: table.name)
def test_what_has_ended_skips_no_record_of_a_source_that_was_made_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
    """The offsets up to which it had come are of the former one, and no row is left that would have told."""
    monkeypatch.setattr(lagging, "LAG_S", 0.0)
    add(broker)
    check_out(broker)
    asyncio.run(worker(broker, "w").work())
    asyncio.run(worker(broker, "v").work())
    found = FakeOffsets.topic_ids
    monkeypatch.setattr(FakeOffsets, "topic_ids", lambda *asked: found(*asked) | {table.source.name: "another id"})
    with pytest.raises(TopicMadeAgain, match=rf"carts/{table.name} has rows of the former one in partition 0"):
        asyncio.run(worker(broker, "later").work())


def test_a_view_of_it_ends_in_its_changelog_too(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lagging, "LAG_S", 0.0)
    for cart in ("ann", "bob"):
        add(broker, cart)
    check_out(broker)
    asyncio.run(worker(broker, "w").work())
    last = rows(broker, TOPOLOGY.changelog(WAITING).name)
    assert {key for key, value in last.items() if value is not None} == {b"bob"}
    assert b"ann" not in last or last[b"ann"] is None


@pytest.mark.usefixtures("lag")
@pytest.mark.parametrize("seed", range(3))
def test_through_any_take_overs_each_row_is_the_fold_and_no_sequence_is_missing(broker: Broker, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(8):
        for _ in range(chance.randrange(6)):
            chance.choice([add, add, check_out])(broker, chance.choice(["ann", "bob", "eve"]))
        at_work = worker(broker, "w")
        if chance.random() < 0.7:
            at_work.producer.fault = Fault(chance.choice(TRANSACTION_STEPS), chance.choice(["refuse", "crash"]))
        with suppress(Crash):
            asyncio.run(at_work.work())
    asyncio.run(worker(broker, "w").work())
    found = events(broker)
    live = rows(broker, TOPOLOGY.changelog(CARTS).name)
    for cart in ("ann", "bob", "eve"):
        own = [event for event in found if event.aggregate_id == cart]
        assert [event.sequence for event in own] == [*range(1, len(own) + 1)]
        row = live.get(cart.encode())
        state = fold(DECIDER.evolve, [event.data for event in own], INITIAL)
        kept = None if row is None else DECIDER.row_codec.decode(row)
        assert (kept and (kept.sequence, kept.state)) == (None if state == INITIAL else (len(own), state))
    commands = [read.value or b"" for at in PLACES if at.topic == COMMANDS.name for read in broker.visible(at, 0)]
    adds = sum(b"cart.add" in each for each in commands)
    assert sum(event.type == "cart.item_added" for event in found) == adds, "each is accepted, and has one effect"
