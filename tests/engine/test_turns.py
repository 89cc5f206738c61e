"""A worker at full speed stays responsive: other tasks on its loop, and its group, get their turns within a fetch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from math import inf
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from shared.domain.row import Outcome
from shared.engine import batch as batch_module
from shared.engine import filling
from shared.engine import pace as pace_module
from shared.engine.batch import Batch
from shared.engine.engine import Engine
from shared.engine.filling import SLICE_RECORDS
from shared.engine.membership import Assignment
from shared.engine.pace import MAX_RETRY_PAUSE_S, RETRY_PAUSE_S, Pace
from shared.engine.processors import Processor, TimerProcessor
from shared.engine.sources import Source
from shared.kafka.transactions import Record
from shared.parking.parked import OperatorRequest
from shared.runtime.positions import Place
from shared.tables.rows import Rows
from shared.topology.records import SourceRecord
from shared.topology.timer import Timer
from shared.topology.topics import Topic, Topology
from tests.faults.simulated import FakeStore

FACTS = Topic("shop.events.v1")
SHOP = Topology("shop", (FACTS,))


class Noting(Processor):
    name, source = "noting", FACTS

    def __init__(self) -> None:
        self.turns: list[str] = []

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        self.turns.append("record")


class Answering(Processor):
    """Writes what it reads."""

    source, writes = FACTS, (Topic("shop.answers.v1"),)

    def __init__(self, name: str, said: list[str]) -> None:
        self.name = name
        self._said = said

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        self._said.append(f"{self.name}{record.offset}")


def _record(offset: int) -> Any:
    return SimpleNamespace(topic=FACTS.name, partition=0, offset=offset, key=b"a", value=b"", timestamp=0)


async def turns_of(records: int) -> str:
    """The turns in order: r for a record, o for a turn of another task."""
    noting = Noting()
    engine = _engine(noting)
    place = Place(FACTS.name, 0)
    fetched = [_record(offset) for offset in range(records)]

    async def other() -> None:
        while noting.turns.count("record") < records:
            noting.turns.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(engine._filling.process(Source(place, [noting], 0, records), fetched), other())
    return "".join(turn[0] for turn in noting.turns)


def _engine(
    *processors: Processor, reader: Any = None, producer: Any = None, alive: Callable[[], None] = lambda: None
) -> Engine:
    """It has the parked rows of one partition, and of its surroundings only what is given."""
    nothing, store = cast(Any, None), cast(Any, FakeStore(SHOP.parked.name))
    store.open(0, "changelog-id")
    stores = {store.table_name: store}
    return Engine(
        SHOP, processors, stores, reader, nothing, producer, offsets=nothing, alive=alive, sign=nothing, lease_s=1.0
    )


def test_answers_to_a_record_come_before_all_answers_to_later_records() -> None:
    said: list[str] = []
    processors = [Answering("a", said), Answering("b", said)]
    source = Source(Place(FACTS.name, 0), processors, 0, 2)
    asyncio.run(_engine(*processors)._filling.process(source, [_record(0), _record(1)]))
    assert said == ["a0", "b0", "a1", "b1"]


def test_each_record_is_handled_once_and_in_order_whichever_stands_for_its_slice() -> None:
    said: list[str] = []
    source = Source(Place(FACTS.name, 0), [Answering("a", said)], 0, 200)
    engine = _engine(*source.processors)
    asyncio.run(engine._filling.process(source, [_record(offset) for offset in range(200)]))
    assert said == [f"a{offset}" for offset in range(200)]
    assert engine.heat.totals[source.place].records == 200


@pytest.mark.parametrize(("slice_s", "turns"), [(0.0, "rrooorrooorr"), (60.0, "rrooorrrr")])
def test_another_task_gets_its_turn_when_a_slice_has_used_its_time(
    monkeypatch: pytest.MonkeyPatch, slice_s: float, turns: str
) -> None:
    monkeypatch.setattr(filling, "SLICE_RECORDS", 2)
    monkeypatch.setattr(pace_module, "SLICE_S", slice_s)
    assert asyncio.run(turns_of(6)) == turns


def _asked(retries: int, alive: Callable[[], None], reader: Any = None) -> tuple[Engine, Source, list[Any]]:
    """An engine, the source of operators' requests, and the records of some retries in it."""
    request = OperatorRequest(action="retry", id="noting/0/a").model_dump_json().encode()
    place = Place(SHOP.parking.name, 0)
    fetched = [
        SimpleNamespace(topic=place.topic, partition=0, offset=n, value=request, timestamp=0) for n in range(retries)
    ]
    return _engine(reader=reader, alive=alive), Source(place, [], 0, retries), fetched


def test_partitions_move_between_two_retries_of_an_operator() -> None:
    alive: list[int] = []

    def still_alive() -> None:
        alive.append(len(alive))
        if len(alive) == 2:  # the group rebalances meanwhile
            engine._inbox.put_nowait((None, asyncio.get_running_loop().create_future()))

    engine, source, fetched = _asked(3, still_alive)
    asyncio.run(engine._filling.process(source, fetched))
    assert (source.position, engine._filling.batch.offsets, len(alive)) == (2, {source.place: 2}, 2)


def test_partitions_move_between_two_slices_of_a_fetch() -> None:
    """Else a worker that takes a second for ten records would keep its whole group waiting, and be put out of it."""
    alive: list[int] = []

    def still_alive() -> None:
        alive.append(len(noting.turns))
        if len(alive) == 2:  # the group rebalances meanwhile
            engine._inbox.put_nowait((None, asyncio.get_running_loop().create_future()))

    noting = Noting()
    engine, source = _engine(noting, alive=still_alive), Source(Place(FACTS.name, 0), [noting], 0, 500)
    asyncio.run(engine._filling.process(source, [_record(offset) for offset in range(500)]))
    assert alive == [0, SLICE_RECORDS]
    assert source.position == engine._filling.batch.offsets[source.place] == 2 * SLICE_RECORDS


def test_other_work_is_committed_between_two_retries_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fault an operator retries thousands of keys at once, and each may take seconds."""
    monkeypatch.setattr(batch_module, "FULL_AGE_S", 0.0)
    sought: list[int] = []
    engine, source, fetched = _asked(3, lambda: None, SimpleNamespace(seek=lambda _, offset: sought.append(offset)))
    asyncio.run(engine._filling.process(source, fetched))
    assert (source.position, engine._filling.batch.offsets, sought) == (1, {source.place: 1}, [1])


class Seekable:
    """In place of a reader: it has read up to `end` when it is asked."""

    def __init__(self, end: int) -> None:
        self.sought: list[int] = []
        self.position = lambda _: end
        self.getmany = AsyncMock()
        self.pause = lambda *_: None

    def seek(self, _: object, offset: int) -> None:
        self.sought.append(offset)


async def _goes_back_to_a_request(reader: Seekable) -> tuple[Engine, Source]:
    engine, source, fetched = _asked(4, lambda: None, reader)
    await engine._filling.process(source, fetched)
    return engine, source


async def _goes_back_to_a_timer(reader: Seekable) -> tuple[Engine, Source]:
    delay = TimerProcessor(Timer(source=FACTS, target=Topic("shop.commands.v1"), delay_s=5.0))
    engine, source = _engine(reader=reader), Source(Place(FACTS.name, 0), [delay], 0, 4)
    due, later = _record(0), _record(1)
    later.timestamp = inf
    assert engine._filling._due(source, [due, later]) == [due]
    return engine, source


@pytest.mark.parametrize("goes_back", [_goes_back_to_a_request, _goes_back_to_a_timer])
def test_a_batch_that_is_dropped_after_a_seek_is_read_again(
    goes_back: Callable[[Seekable], Awaitable[tuple[Engine, Source]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an assignment."""
    monkeypatch.setattr(batch_module, "FULL_AGE_S", 0.0)

    async def read() -> None:
        engine, source = await goes_back(reader)
        reader.getmany = AsyncMock(return_value={source.place: [_record(3)]})
        assert await engine.reading.fetch(0, 1) == {}
        assert reader.sought == [1, 1]

    reader = Seekable(end=4)
    asyncio.run(read())


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "while a replica is restored"])
def test_a_worker_fetches_less_after_each_failure(beside: bool) -> None:
    assert asyncio.run(_asked_for(beside, paused=False, settled="ffff")) == [500, 250, 125, 62, 31]


def test_a_worker_fetches_twice_as_much_after_each_success_until_it_fetches_all_again() -> None:
    """Back at once, it would fail several times again where only small batches pass, and may lose its membership."""
    assert asyncio.run(_asked_for(False, paused=False, settled="fffssss")) == [500, 250, 125, 62, 124, 248, 496, 500]


def test_a_worker_that_only_restores_fetches_as_much_as_ever() -> None:
    assert asyncio.run(_asked_for(True, paused=True, settled="ffs")) == [500] * 4


async def _asked_for(restoring: bool, paused: bool, settled: str) -> list[int]:
    """How many records each fetch asks for, at first and after each commit that fails (f) or succeeds (s)."""
    place, changelog = Place(FACTS.name, 0), Place(SHOP.changelog(SHOP.parked).name, 0)
    asked: list[int] = []

    async def getmany(timeout_ms: int, max_records: int) -> dict[Any, Any]:
        asked.append(max_records)
        return {}

    reader = SimpleNamespace(
        getmany=getmany,
        assign=lambda positions: None,
        position=lambda place: 0,
        highwater=lambda place: 0,
        paused=lambda: {place} if paused else set(),
    )
    engine = _engine(reader=reader)
    engine.holdings.sources = {place: Source(place, [], 0, 0)}
    if restoring:
        engine.holdings.replicas.hold([], [changelog], {changelog: 0}, {changelog: 9}, {changelog.topic: "id"})
    await engine._work()
    for end in settled:
        if end == "f":
            engine._pace.failed()
        else:
            engine._pace.succeeded()
        await engine._work()
    return asked


class SlowProducer:
    """Commits when `may_commit` is set. committed: the position that each commit gives the source."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.may_commit = threading.Event()

    def send(self, records: Sequence[Record]) -> None:
        pass

    def commit(self, offsets: Mapping[Place, int], member: bytes) -> Mapping[Place, int]:
        assert self.may_commit.wait(60)
        self.committed += offsets.values()
        return {}


async def commits_of(arrivals: str) -> list[int]:
    """What is committed when records arrive during a commit (d) or after it (a)."""
    place, producer, offsets = Place(FACTS.name, 0), SlowProducer(), count()

    async def getmany(timeout_ms: int, max_records: int) -> dict[Any, Any]:
        return {place: [_record(next(offsets))]}

    reader = SimpleNamespace(getmany=getmany, position=lambda place: 0, paused=lambda: set(), stop=AsyncMock())
    engine = _engine(Noting(), reader=reader, producer=producer)
    engine.holdings.sources = {place: Source(place, [Noting()], 0, 0)}
    engine.assignment = Assignment(frozenset({place}), frozenset(), b"", 1, "m")
    await engine._work()
    for arrival in arrivals:
        if arrival == "a":
            producer.may_commit.set()
            await engine._settle()
            producer.may_commit.clear()
        await engine._work()
    producer.may_commit.set()
    await engine._settle()
    await engine.on_stop()
    return producer.committed


@pytest.mark.parametrize(
    ("pause", "arrivals", "committed"),
    [
        pytest.param(1e9, "aaa", [1, 2, 3, 4], id="each alone, so at once"),
        pytest.param(0.0, "dda", [1, 4], id="during a commit, so in one more"),
        pytest.param(1e9, "dda", [1], id="during a commit, so after a pause"),
    ],
)
def test_records_that_come_during_a_commit_are_committed_together(
    monkeypatch: pytest.MonkeyPatch, pause: float, arrivals: str, committed: list[int]
) -> None:
    monkeypatch.setattr(pace_module, "PAUSE", pause)
    monkeypatch.setattr(batch_module, "FULL_AGE_S", inf)
    assert asyncio.run(commits_of(arrivals)) == committed


@pytest.mark.parametrize(
    ("done", "waiting", "came", "is_due"),
    [
        pytest.param(0, 0, 1, True, id="nothing was asked"),
        pytest.param(1, 0, 1, True, id="the only caller asks again"),
        pytest.param(16, 0, 1, False, id="the first of many"),
        pytest.param(16, 0, 16, True, id="all of them"),
        pytest.param(8, 8, 8, False, id="the other half"),
        pytest.param(8, 8, 16, True, id="both halves"),
        pytest.param(0, 1, 1, True, id="one that came while only views were written"),
    ],
)
def test_commands_wait_only_for_callers_that_may_ask_again(
    monkeypatch: pytest.MonkeyPatch, done: int, waiting: int, came: int, is_due: bool
) -> None:
    """So that callers who wait for their answers are not two cohorts, each of which waits for the other's commit."""
    monkeypatch.setattr(batch_module, "FULL_AGE_S", inf)
    pace = Pace()
    pace.pause(60.0, _deciding(done), _deciding(waiting))
    assert pace.is_due(_deciding(came), came, is_committing=False) is is_due


def _deciding(commands: int) -> Batch:
    batch, outcome = Batch(""), Outcome("c", 1, None, None, "")
    for number in range(commands):
        batch.outcomes.append((f"a-{number}", outcome))
        batch.advance(Place(FACTS.name, 0), number + 1, 1)
    return batch


def test_any_number_of_failures_is_survived() -> None:
    pace = Pace()
    pauses_s = [pace.failed() for _ in range(5_000)]
    assert (pauses_s[0], pauses_s[-1], pace.limit) == (RETRY_PAUSE_S, MAX_RETRY_PAUSE_S, 1)
