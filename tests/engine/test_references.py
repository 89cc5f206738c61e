"""Rows that show those of a reference table, whatever is killed: made again some at a time, and never half.

On a simulated broker. tests/pipelines/test_references.py has what Spark makes of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from shared.domain.row import Row
from shared.engine import references
from shared.engine.retries import NO_MORE_AT_ONCE, OperatorRequests
from shared.engine.wiring import processors_of, wired
from shared.kafka.murmur2 import partition_of
from shared.parking.parked import Failure, OperatorRequest
from shared.runtime.positions import Place
from shared.testing.conversation import MemoryRecord
from shared.topology import Service, Table, Topology
from tests.engine.assigned import Assigned
from tests.faults.simulated import TRANSACTION_STEPS, Broker, Crash, Fault
from tests.pipelines.boards.service import (
    AIRPORTS,
    BOARD,
    COPIES,
    FLOWN,
    JOIN,
    MAPPED,
    NAMED,
    PLANNED,
    ROUTES,
    SERVICE,
    TOPOLOGY,
    Airport,
    name,
    named,
    plan,
)

pytestmark = pytest.mark.usefixtures("no_waiting", "no_lag")

CODES = ("ams", "ber", "cph")
CODECS = {ROUTES: FLOWN.row_codec, AIRPORTS: MAPPED.row_codec, BOARD: JOIN.row_codec}
PARTITIONS = range(TOPOLOGY.partitions)


@pytest.fixture
def broker() -> Broker:
    return broker_of(random.Random(1))


def broker_of(chance: random.Random, topology: Topology = TOPOLOGY) -> Broker:
    topics = [PLANNED.name, NAMED.name, *(topic.name for topic in topology.all_topics())]
    return Broker(topics, TOPOLOGY.partitions, chance, TOPOLOGY.group)


def worker(broker: Broker, name: str = "w", service: Service = SERVICE) -> Assigned:
    topology, others = service.topology, [PLANNED.name, NAMED.name]
    processors = wired(topology, processors_of(service))
    return Assigned(broker, name, *PARTITIONS, topology=topology, processors=processors, others=others)


def say(broker: Broker, *said: tuple[Any, str, bytes]) -> None:
    for topic, key, value in said:
        broker.append(topic.name, (key.encode(), value), None)


def work_off(broker: Broker) -> None:
    """Until nothing is unread."""
    at_work = worker(broker)

    async def all_of_it() -> None:
        await at_work.work()
        for _ in range(100):
            if not any(map(at_work.engine.reading.lag, at_work.engine.holdings.sources.values())):
                return
            await at_work.go_on()
        raise AssertionError("the work never ends")

    asyncio.run(all_of_it())


async def struck(at_work: Assigned, chance: random.Random) -> None:
    await at_work.start()
    for _ in range(30):
        if chance.random() < 0.1:
            kind = chance.choice(["refuse", "refuse", "crash"])
            at_work.producer.fault = Fault(chance.choice(TRANSACTION_STEPS), kind)
        await at_work.engine.step()
        await at_work.engine._settle()


def live(broker: Broker, table: Table) -> dict[tuple[int, str], Row[Any]]:
    """The rows, by partition and key, by the changelog."""
    codec, changelog = CODECS[table], TOPOLOGY.changelog(table).name
    last = {
        (number, cast(bytes, read.key).decode()): read.value
        for number in PARTITIONS
        for read in broker.visible(Place(changelog, number), 0)
    }
    return {at: codec.decode(value) for at, value in sorted(last.items()) if value is not None}


def joined(broker: Broker) -> dict[tuple[int, str], Row[Any] | None]:
    """What the board has to show, by the rows of its views."""
    routes, airports = live(broker, ROUTES), live(broker, AIRPORTS)
    return {
        (number, flight): JOIN.row(
            [
                route,
                *(
                    airports.get((number, code or ""), MAPPED.initial_row)
                    for code in (route.state.origin, route.state.target)
                ),
            ],
            flight,
        )
        for (number, flight), route in routes.items()
    }


def passed(broker: Broker) -> Mapping[int, int]:
    """The position in the references, by partition."""
    return {number: broker.committed.get(Place(COPIES.name, number), 0) for number in PARTITIONS}


def history(broker: Broker, chance: random.Random, records: int) -> None:
    for _ in range(records):
        if chance.random() < 0.6:
            flight, origin = f"f-{chance.randrange(12)}", chance.choice([*CODES, *CODES, ""])
            say(broker, plan(flight, origin, chance.choice([*CODES, None])))
        else:
            say(broker, name(chance.choice(CODES), chance.choice(["", "North", "South"])))


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] if seed else []) for seed in range(25)])
def test_through_any_kills_each_row_shows_what_it_refers_to(
    broker: Broker, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any time, what the position has passed; in the end, all of it. In short, seed 0."""
    chance = random.Random(seed)
    monkeypatch.setattr(references, "AT_ONCE", 1)
    for _ in range(12):
        history(broker, chance, chance.randrange(12))
        with suppress(Crash):
            asyncio.run(struck(worker(broker), chance))
        rows, positions = live(broker, BOARD), passed(broker)
        assert rows.keys() == joined(broker).keys()
        for (number, flight), expected in joined(broker).items():
            row = rows[number, flight]
            assert expected is not None
            if row != expected:  # it is on the way to a row of a reference that the position is at
                newer = [
                    offset for part, (_, offset) in expected.made_of.items() if row.made_of.get(part) != [_, offset]
                ]
                ended = expected.made_of.keys() < row.made_of.keys()
                assert ended or max(newer) >= positions[number]
    work_off(broker)
    assert live(broker, BOARD) == joined(broker)
    again = broker_of(chance)
    for topic in (PLANNED, NAMED):
        for number in PARTITIONS:
            for read in broker.visible(Place(topic.name, number), 0):
                again.append(topic.name, (read.key, read.value), None)
    work_off(again)
    states = [{at: (row.sequence, row.state) for at, row in live(each, BOARD).items()} for each in (broker, again)]
    assert states[0] == states[1]


def test_many_rows_that_show_one_are_made_again_in_commits_of_their_own(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the position stays, and other records are handled."""
    monkeypatch.setattr(references, "AT_ONCE", 3)
    say(broker, *(plan(f"f-{number}", "ams", "ber") for number in range(60)))
    asyncio.run(worker(broker).work())
    say(broker, name("ber", "Spree"))
    at_work = worker(broker, "v")

    async def some() -> list[int]:
        await at_work.start()
        seen = []
        for turn in range(40):
            await at_work.engine.step()
            await at_work.engine._settle()
            seen.append(sum(row.state.going_to == "Spree 1" for row in live(broker, BOARD).values()))
            if turn == 5:
                say(broker, plan("late", "ams", "ber"))
        return seen

    seen = asyncio.run(some())
    assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) <= 3 * len(PARTITIONS) + 1
    assert seen[-1] == 61
    assert all(position for position in passed(broker).values())


def test_references_of_one_topic_take_no_more_turns_than_the_one_with_most_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if they are done in different ones."""
    monkeypatch.setattr(references, "AT_ONCE", 3)
    alike = replace(AIRPORTS, name="alike")
    table = replace(BOARD, refers=(("origin", AIRPORTS), ("target", alike)))
    topology = replace(TOPOLOGY, tables=(ROUTES, AIRPORTS, alike, table))
    views, joins = (FLOWN, MAPPED, replace(MAPPED, table=alike)), (replace(JOIN, table=table),)
    service = replace(SERVICE, topology=topology, projections=views, joins=joins)
    broker = broker_of(random.Random(1), topology)
    flights = [f"f-{n}" for n in range(200) if partition_of(f"f-{n}".encode(), TOPOLOGY.partitions) == 0][:30]
    say(broker, *(plan(flight, "ams", "ams" if n < 24 else "ber") for n, flight in enumerate(flights)))
    at_work = worker(broker, "w", service)

    async def turns() -> int:
        await at_work.work()
        say(broker, name("ams", "Polder"))
        for turn in range(100):
            if passed(broker)[0]:
                return turn
            await at_work.engine.step()
            await at_work.engine._settle()
        raise AssertionError("it is never done")

    assert asyncio.run(turns()) <= 10 + 2  # until the event is copied
    shown = [row.state.coming_from + row.state.going_to for row in live(broker, BOARD).values()]
    assert sorted(shown) == ["Polder 1Polder 1"] * 24 + ["Polder 1ber"] * 6


def test_a_row_that_would_be_too_large_stays_and_holds_nothing_up(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "LARGE_ROW_BYTES", 150)
    say(broker, plan("f-1", "ams", "ber"), name("ams", "Polder"))
    asyncio.run(worker(broker).work())
    too_large = TOPOLOGY.changelog(BOARD).name
    at_work = worker(broker, "v")
    at_work.refuse(lambda record: record.topic == too_large and b"Spree" in (record.value or b""))
    say(broker, name("ber", "Spree"), name("ams", "Canal"), plan("f-2", "ams", "cph"))
    asyncio.run(at_work.work())
    asyncio.run(at_work.go_on())
    rows = {flight: row.state.coming_from + row.state.going_to for (_, flight), row in live(broker, BOARD).items()}
    assert rows == {"f-1": "Polder 1ber", "f-2": "Canal 2cph"}


def test_a_parked_reference_that_is_retried_is_shown_some_at_a_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it is parked, and what comes of its key waits behind it."""
    monkeypatch.setattr(references, "AT_ONCE", 1)
    healed = False

    def fails(airport: Airport | None, event: Any, code: str) -> Airport | None:
        if event.data.name == "bad" and not healed:
            raise ValueError("a bug")
        return named(airport, event, code)

    async def reread(_: object, place: Place, offsets: Sequence[int]) -> tuple[dict[int, Any], Failure]:
        reads = (read for read in broker.visible(place, 0) if read.offset in offsets)
        return {
            read.offset: MemoryRecord(place.topic, read.key or b"", read.value or b"", read.offset, place.number)
            for read in reads
        }, NO_MORE_AT_ONCE

    monkeypatch.setattr(OperatorRequests, "_reread", reread)
    service = replace(SERVICE, projections=(FLOWN, replace(MAPPED, project=fails)))
    say(broker, *(plan(f"f-{number}", "ams", "ber") for number in range(9)), name("ams", "bad"), name("ams", "Canal"))
    asyncio.run(worker(broker, "v", service).work())
    assert {row.state.coming_from for row in live(broker, BOARD).values()} == {"ams"}
    healed = True
    for number in PARTITIONS:
        retry = OperatorRequest(action="retry", id=f"{AIRPORTS.name}/{number}/ams")
        place = Place(TOPOLOGY.parking.name, number)
        broker.stamp(place, b"ams", retry.record[1], None)
    asyncio.run(worker(broker, "u", service).work())
    work_off(broker)
    assert {row.state.coming_from for row in live(broker, BOARD).values()} == {"Canal 2"}
