"""A parked record is retried when it can be read; otherwise it stays parked and says why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, cast

import pytest
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError

from shared.domain.envelope import EventCodec
from shared.domain.message import Event
from shared.engine import retries
from shared.engine.batch import Batch
from shared.engine.processors import Processor, ProjectionProcessor
from shared.engine.retries import OperatorRequests
from shared.engine.sources import Source
from shared.parking.parked import (
    PARKED_CODEC,
    Failure,
    OperatorRequest,
    Parked,
    is_noted_in,
    noted_id,
    partition_of_id,
    processor_of_id,
)
from shared.parking.parking import Parking
from shared.runtime.positions import Place
from shared.tables.rows import Rows
from shared.testing.conversation import MemoryRecord
from shared.topology.projection import Projection
from shared.topology.records import SourceRecord
from shared.topology.topics import Table, Topic, Topology
from tests.faults.simulated import FakeStore

FACTS = Topic("shop.events.v1")
PLACE = Place(FACTS.name, 0)
KEY = "fragile/0/a"
PARKED = Parked(
    processor="fragile", topic=FACTS.name, partition=0, offset=0, code="x", reason="", attempts=1, behind=(1, 2, 3, 4)
)


class Fragile(Processor):
    name, source = "fragile", FACTS

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        raise AssertionError("the test attempts it itself")


class Noted(Event):
    TYPE = "shop.noted"


def fact(offset: int) -> MemoryRecord:
    """The event with the next sequence."""
    codec: EventCodec[Noted] = EventCodec([Noted])
    story = {"event_id": "e", "aggregate_id": "a", "correlation_id": "c"}
    noted = codec.write(Noted(), **story, sequence=offset + 1, occurred_at=datetime(2026, 1, 1, tzinfo=UTC))
    return MemoryRecord(FACTS.name, b"a", noted, offset)


class Log:
    """A consumer that reads one record at a time, up to the offset at which the leader freezes."""

    def __init__(self, *, away: bool = False, begins: int = 0, freezes: int = 100) -> None:
        self.stopped = False
        self.waits = 0
        self._away = away
        self._begins = begins
        self._freezes = freezes

    async def start(self) -> None:
        if self._away:
            raise KafkaConnectionError

    async def stop(self) -> None:
        self.stopped = True

    def assign(self, _places: Sequence[Place]) -> None: ...

    def seek(self, _place: Place, offset: int) -> None:
        self._position = offset

    async def getmany(self, place: Place, timeout_ms: int, **_: Any) -> dict[Place, list[MemoryRecord]]:
        if self._position < self._begins:
            raise OffsetOutOfRangeError({place: self._position})
        if self._position >= self._freezes:
            self.waits += 1
            await asyncio.sleep(timeout_ms / 1000)
            return {}
        return {place: [fact(self._position)]}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "REREAD_S", 0.1)


def test_records_that_can_be_handled_now_are_no_longer_parked() -> None:
    log = Log()
    assert _retry(log) == (None, [0, 1, 2, 3, 4])
    assert log.stopped


def test_a_processor_that_this_release_lacks_leaves_its_records_parked() -> None:
    left, handled = _retry(None, sources={})
    assert left == PARKED.failed(Failure("gone", "fragile does not read shop.events.v1 in this release"))
    assert handled == []


def test_a_record_that_retention_removed_stays_parked_as_gone() -> None:
    log = Log(begins=1)
    left, handled = _retry(log)
    assert left == PARKED.failed(Failure("gone", "the record is no longer there"))
    assert handled == []
    assert log.stopped


def test_brokers_that_are_away_leave_a_record_parked_for_the_next_retry() -> None:
    log = Log(away=True)
    left, handled = _retry(log)
    assert left is not None
    assert (left.offsets, left.code, left.attempts) == (PARKED.offsets, "unread", 2)
    assert "KafkaConnectionError" in left.reason
    assert handled == []
    assert log.stopped


def test_a_leader_that_freezes_is_waited_for_once_and_records_read_before_are_handled() -> None:
    log = Log(freezes=2)
    left, handled = _retry(log)
    assert left is not None
    assert (left.offsets, left.code) == ((2, 3, 4), "unread")
    assert handled == [0, 1]
    assert log.waits == 1
    assert log.stopped


def test_no_more_is_read_at_once_than_a_worker_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "REREAD_BYTES", len(fact(0).value))
    left, handled = _retry(Log())
    assert left is not None
    assert (left.offsets, left.code, left.reason) == ((2, 3, 4), "unread", "no more are read at once, retry")
    assert handled == [0, 1]


def test_while_many_records_are_retried_other_tasks_get_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    many, breaks_at = 1_000, 990
    turns = 0

    async def read(
        _: OperatorRequests, __: Place, offsets: Sequence[int]
    ) -> tuple[Mapping[int, MemoryRecord], Failure]:
        return {offset: fact(offset) for offset in offsets}, Failure("gone", "")

    def attempt(_: Processor, record: SourceRecord) -> Failure | None:
        return Failure("processor.failed", "too heavy") if record.offset == breaks_at else None

    async def retried(parking: Parking) -> None:
        async def beat() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beating = asyncio.create_task(beat())
        requests = _requests({PLACE: Source(PLACE, [Fragile()], position=many, end=many)}, None)
        await requests.fulfil(OperatorRequest(action="retry", id=KEY), parking, attempt, Batch("dead-letters").bury)
        beating.cancel()

    monkeypatch.setattr(OperatorRequests, "_reread", read)
    parking = _parking()
    parking.keep(KEY, PARKED.model_copy(update={"behind": tuple(range(1, many))}))
    asyncio.run(retried(parking))
    left = parking.get(KEY)
    assert left is not None
    assert (left.offsets, left.code, left.attempts) == (tuple(range(breaks_at, many)), "processor.failed", 1)
    assert turns >= many // retries.TURN_RECORDS - 1


@pytest.mark.parametrize(
    ("processor", "offset", "left"),
    [("fragile", 0, (1, 2, 3, 4)), ("fragile", 1, PARKED.offsets), ("chapters", 0, PARKED.offsets)],
)
def test_the_first_record_is_discarded_but_no_event_of_a_history(
    processor: str, offset: int, left: tuple[int, ...]
) -> None:
    parking = _parking()
    key = f"{processor}/0/a"
    parking.keep(key, PARKED.model_copy(update={"processor": processor}))
    request = OperatorRequest(action="discard", id=key, offset=offset, reason="a test", by="ann")
    note = asyncio.run(_requests({}, None).fulfil(request, parking, lambda *_: None, _no_letter))
    parked = parking.get(key)
    assert parked is not None
    assert parked.offsets == left
    dropped = OperatorRequest(action="dropped", id=f"{key}@{FACTS.name}", offset=offset, reason="a test")
    assert note == (dropped if left != PARKED.offsets else None)  # a release that knows no `by` reads it, too


@pytest.mark.parametrize("action", ["retry", "reprocess"])
def test_an_operator_request_whose_id_names_no_partition_is_malformed(action: str) -> None:
    with pytest.raises(ValueError, match="names no partition"):
        OperatorRequest.model_validate_json(f'{{"action":"{action}","id":"fragile","offset":0}}')


@pytest.mark.parametrize(
    ("noted", "counts"),
    [
        (noted_id("view/0/a", "shop.events.v1"), True),
        (noted_id("view/0/a@shop.events.v1", "shop.events.v1"), True),
        (noted_id("view/0/", "shop.events.v1"), True),
        (noted_id("view/0/a@example.org", "stall.events.v1"), False),
        (noted_id("view/0/", "stall.events.v1"), False),
        ("view/0/a@example.org", True),  # of an earlier release
        ("view/0", True),
    ],
)
def test_a_note_counts_for_its_topic_and_has_a_partition(noted: str, counts: bool) -> None:
    assert is_noted_in(noted, "shop.events.v1") == counts
    assert (processor_of_id(noted), partition_of_id(noted)) == ("view", 0)


def test_the_note_of_a_drop_drops_nothing() -> None:
    parking = _parking()
    parking.keep(KEY, PARKED)
    note = OperatorRequest(action="dropped", id=KEY, offset=0)
    assert asyncio.run(_requests({}, None).fulfil(note, parking, lambda *_: None, _no_letter)) is None
    assert parking.get(KEY) == PARKED


def test_each_record_leaves_a_letter_when_it_first_fails() -> None:
    bad, batch = {1, 4}, Batch("dead-letters")

    def attempt(_: Processor, record: SourceRecord) -> Failure | None:
        return Failure("message.bad", f"bad {record.offset}") if record.offset in bad else None

    def retry() -> list[int]:
        """Retries; returns the offsets in all letters so far."""
        request = OperatorRequest(action="retry", id=KEY)
        asyncio.run(_requests({PLACE: source}, Log()).fulfil(request, parking, attempt, batch.bury))
        return [json.loads(letter.value or b"")["offset"] for letter in batch.records]

    source = Source(PLACE, [Fragile()], position=5, end=5)
    parking = _parking()
    parking.keep(KEY, PARKED.model_copy(update={"offset": 1, "behind": (2, 3, 4), "code": "message.bad"}))
    assert retry() == []  # its letter was written when it was parked
    bad.remove(1)
    assert retry() == [4]
    assert retry() == [4]
    parking.keep(KEY, PARKED.without(1))
    bad.add(1)
    assert retry() == [4, 1]


def test_a_parked_record_waits_until_its_source_is_reread_up_to_it() -> None:
    fragile = Table("fragile", FACTS)
    view = ProjectionProcessor(
        Projection(
            fragile, lambda seen, event, _: [*seen, event.sequence], initial=[], events=(Noted,), state=list[int]
        )
    )
    source = Source(PLACE, [view], position=0, end=4)
    requests = _requests({PLACE: source}, Log())
    parking, rows, batch = _parking(), _rows(view.codec), Batch("dead-letters")
    parking.keep(KEY, PARKED.model_copy(update={"offset": 1, "behind": (2, 3)}))

    def read(*offsets: int) -> None:
        view.process([fact(offset) for offset in offsets], rows, batch, parking)
        source.position = offsets[-1] + 1

    def ask(action: Literal["retry", "discard"]) -> Parked | None:
        request = OperatorRequest(action=action, id=KEY, offset=1)
        asyncio.run(requests.fulfil(request, parking, lambda each, again: each.attempt(again, rows, batch), _no_letter))
        return parking.get(KEY)

    def left_alone(parked: Parked | None, *offsets: int) -> bool:
        return parked is not None and (parked.offsets, parked.code) == (offsets, "unread")

    assert left_alone(ask("retry"), 1, 2, 3)
    assert left_alone(ask("discard"), 1, 2, 3)
    read(0, 1)
    assert left_alone(ask("retry"), 2, 3)
    read(2, 3)
    assert ask("retry") is None
    row = rows.get(b"a")
    assert row is not None
    assert row.state == [1, 2, 3, 4]


def _no_letter(record: SourceRecord, *_: str) -> None:
    raise AssertionError(f"a letter of {record.offset}")


def _parking() -> Parking:
    return Parking(_rows(PARKED_CODEC), set())


def _rows(codec: Any) -> Rows:
    store: Any = FakeStore("rows")
    store.open(0, "changelog-id")
    return Rows("", store, 0, None, codec)


def _requests(sources: Mapping[Place, Source], log: Log | None) -> OperatorRequests:
    topology = Topology("shop", (FACTS,), history=FACTS)
    return OperatorRequests(topology, sources, cast(Callable[[], Any], lambda: log))


def _retry(log: Log | None, sources: Mapping[Place, Source] | None = None) -> tuple[Parked | None, list[int]]:
    """What stays parked after a retry, and the offsets that were handled."""
    parking = _parking()
    parking.keep(KEY, PARKED)
    handled: list[int] = []
    requests = _requests({PLACE: Source(PLACE, [Fragile()], position=5, end=5)} if sources is None else sources, log)
    request = OperatorRequest(action="retry", id=KEY)
    asyncio.run(requests.fulfil(request, parking, lambda _, record: handled.append(record.offset), _no_letter))
    return parking.get(KEY), handled
