"""A parked record is tried again when it can be read; whatever hinders that, it stays parked and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError

from shared.parking import PARKED_CODEC, Failure, Parked, Wish
from shared.streams import wishes as wishes_module
from shared.streams.batch import Batch, Rows, SourceRecord
from shared.streams.parking import Parking
from shared.streams.processors import Processor
from shared.streams.store import RowStore
from shared.streams.wishes import Wishes
from shared.testing.conversation import Said
from shared.topology import Topic, Topology

FACTS = Topic("shop.events.v1")
KEY = "fragile/0/a"
PARKED = Parked(
    processor="fragile", topic=FACTS.name, partition=0, offset=0, code="x", reason="", attempts=1, behind=(1, 2, 3, 4)
)


class Fragile(Processor):
    name, source = "fragile", FACTS

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        raise AssertionError("the test attempts it itself")


class Log:
    """A consumer that reads one record at a time, up to where its leader freezes."""

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

    def assign(self, _places: Sequence[TopicPartition]) -> None: ...

    def seek(self, _place: TopicPartition, offset: int) -> None:
        self._position = offset

    async def getmany(self, place: TopicPartition, timeout_ms: int, **_: Any) -> dict[TopicPartition, list[Said]]:
        if self._position < self._begins:
            raise OffsetOutOfRangeError({place: self._position})
        if self._position >= self._freezes:
            self.waits += 1
            await asyncio.sleep(timeout_ms / 1000)
            return {}
        return {place: [Said(FACTS.name, b"a", b"", self._position)]}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes_module, "REREAD_S", 0.1)


def test_what_can_be_handled_now_is_parked_no_more() -> None:
    log = Log()
    assert _retry(log) == (None, [0, 1, 2, 3, 4])
    assert log.stopped


def test_a_processor_that_this_release_lacks_leaves_its_records_parked() -> None:
    left, handled = _retry(None, processors={})
    assert left == PARKED.failed(Failure("gone", "the processor is no longer there"))
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


def test_a_leader_that_freezes_is_waited_for_once_and_what_came_before_is_handled() -> None:
    log = Log(freezes=2)
    left, handled = _retry(log)
    assert left is not None
    assert (left.offsets, left.code) == ((2, 3, 4), "unread")
    assert handled == [0, 1]
    assert log.waits == 1
    assert log.stopped


@pytest.mark.parametrize(("processor", "left"), [("fragile", (1, 2, 3, 4)), ("chapters", (0, 1, 2, 3, 4))])
def test_a_record_is_discarded_but_no_event_of_a_history(processor: str, left: tuple[int, ...]) -> None:
    parking = Parking(Rows("", cast(RowStore, None), 0, None, PARKED_CODEC), set())
    key = f"{processor}/0/a"
    parking.keep(key, PARKED.model_copy(update={"processor": processor}))
    wish = Wish(action="discard", id=key, offset=0, reason="a test")
    asyncio.run(_wishes({}, None).fulfil(wish, parking, lambda *_: None))
    parked = parking.get(key)
    assert parked is not None
    assert parked.offsets == left


def _wishes(processors: dict[str, list[Processor]], log: Log | None) -> Wishes:
    topology = Topology("shop", (FACTS,), history=FACTS)
    return Wishes(topology, processors, cast(Callable[[], Any], lambda: log))


def _retry(log: Log | None, processors: dict[str, list[Processor]] | None = None) -> tuple[Parked | None, list[int]]:
    """What stays parked, and the offsets that were handled."""
    parking = Parking(Rows("", cast(RowStore, None), 0, None, PARKED_CODEC), set())
    parking.keep(KEY, PARKED)
    handled: list[int] = []
    wishes = _wishes({FACTS.name: [Fragile()]} if processors is None else processors, log)
    wish = Wish(action="retry", id=KEY)
    asyncio.run(wishes.fulfil(wish, parking, lambda _, record: handled.append(record.offset)))
    return parking.get(KEY), handled
