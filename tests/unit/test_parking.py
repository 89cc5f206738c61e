"""When a source is read again, parked records stay parked, once; records before them are handled or parked too."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, cast

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.decider import Decider
from shared.domain.envelope import EventCodec
from shared.domain.message import Command, Event
from shared.domain.row import Row
from shared.engine import processors
from shared.engine.batch import Batch
from shared.engine.processors import AggregateProcessor, PolicyProcessor, Processor, ProjectionProcessor, RekeyProcessor
from shared.engine.wiring import by_source
from shared.parking import parking as parking_module
from shared.parking.parked import PARKED_CODEC, Failure, Parked
from shared.parking.parking import Parking
from shared.tables.rows import Rows
from shared.tables.store import RowStore
from shared.testing.conversation import MemoryRecord
from shared.topology.policy import Policy
from shared.topology.projection import Projection
from shared.topology.records import SourceRecord
from shared.topology.rekey import Rekey
from shared.topology.topics import Table, Topic, Topology

FACTS = Topic("shop.events.v1")
LOG = [MemoryRecord(FACTS.name, key, b"", offset) for offset, key in enumerate((b"a", b"a", b"b", b"a"))]
TOO_HEAVY = ValueError("too heavy")


class Fragile(Processor):
    """Fails on the record at `breaks_at`."""

    name, source = "fragile", FACTS

    def __init__(self, breaks_at: int = 1, bug: Exception = TOO_HEAVY) -> None:
        self.breaks_at = breaks_at
        self.bug = bug
        self.handled: list[int] = []

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        if record.offset == self.breaks_at:
            raise self.bug
        self.handled.append(record.offset)


class Nothing:
    """A store without a row."""

    def get(self, _partition: int, _key: bytes) -> None:
        return None


def test_when_read_again_a_parked_record_holds_back_only_the_records_behind_it() -> None:
    parking, processor, batch = _parking(), Fragile(), Batch("dead-letters")
    processor.process(LOG, None, batch, parking)
    parked, letters = parking.get("fragile/0/a"), list(batch.records)
    assert parked is not None
    assert (parked.offsets, len(letters)) == ((1, 3), 1)

    processor.process(LOG, None, batch, parking)
    assert processor.handled == [0, 2, 0, 2]
    assert parking.get("fragile/0/a") == parked
    assert batch.records == letters


@given(st.lists(st.integers(0, 60) | st.integers(1, 9).map(str), max_size=80))
def test_however_many_records_wait_they_stay_in_order_on_pages_of_a_limited_size(steps: list[int | str]) -> None:
    """A number parks the record at that offset, which may be read again; a text lets go as many as it says."""
    rows, waiting = Rows("", cast(RowStore, Nothing()), 0, None, PARKED_CODEC), set[int]()
    parking = Parking(rows, set())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parking_module, "PAGE_RECORDS", 4)
        for step in steps:
            if isinstance(step, int):
                parking.park("fragile", MemoryRecord(FACTS.name, b"a", b"", step), processors.BEHIND)
                waiting.add(step)
            elif waiting:
                parking.drop("fragile/0/a", int(step))
                waiting -= set(sorted(waiting)[: int(step)])
            first = parking.get("fragile/0/a")
            assert list(parking.offsets("fragile/0/a")) == sorted(waiting)
            assert first is None or first.waiting == len(waiting) - 1
            kept = [row.state for row in rows.changed.values() if row is not None]
            assert sorted(offset for page in kept for offset in page.offsets) == sorted(waiting)
            assert all(len(page.offsets) <= 4 for page in kept)


class Mute(Exception):
    """Its text has a bug, too."""

    def __str__(self) -> str:
        return cast(str, self.args[0])


def test_the_log_has_where_a_bug_is_and_not_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """That may quote the record."""
    written = io.StringIO()
    as_json = structlog.processors.JSONRenderer()
    rendered = structlog.wrap_logger(structlog.WriteLogger(written), [structlog.processors.format_exc_info, as_json])
    monkeypatch.setattr(processors, "log", rendered)
    Fragile(bug=ValueError("4111-1111")).process(LOG, None, Batch("dead-letters"), _parking())
    told = json.loads(written.getvalue().splitlines()[0])
    assert "4111" not in written.getvalue()
    assert "in handle" in told["exception"]
    assert told["exception"].endswith("ValueError")


@pytest.mark.parametrize(
    ("bug", "begins"),
    [(ValueError("ü" * 900_000), "ValueError: ü"), (ValueError("\ud800"), "ValueError: ?"), (Mute(3), "Mute")],
)
def test_whatever_a_bug_says_its_record_is_parked_with_a_letter_that_a_broker_takes(
    bug: Exception, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parking, processor, batch = _parking(), Fragile(bug=bug), Batch("dead-letters")
    monkeypatch.setattr(processors, "log", structlog.get_logger())  # one that was used before can't be captured
    with structlog.testing.capture_logs():  # pytest-xdist can't report half a character
        processor.process(LOG, None, batch, parking)
    parked, (letter,) = parking.get("fragile/0/a"), batch.records
    assert parked is not None
    assert parked.reason.startswith(begins)
    assert PARKED_CODEC.encode_checked([Row(1, parked, {}, 0)])
    assert json.loads(letter.value or b"")["reason"] == parked.reason
    assert len(letter.value or b"") < 10_000


def test_a_discarded_record_that_fails_again_is_parked_anew_before_the_others() -> None:
    parking, processor, batch = _parking(), Fragile(), Batch("dead-letters")
    processor.process(LOG, None, batch, parking)
    parked = parking.get("fragile/0/a")
    assert parked is not None
    parking.keep("fragile/0/a", parked.without(1))

    processor.process(LOG, None, batch, parking)
    anew = parking.get("fragile/0/a")
    assert anew is not None
    assert (anew.offsets, anew.code, anew.attempts) == ((1, 3), "processor.failed", 1)
    assert processor.handled == [0, 2, 0, 2]


def test_a_parked_record_behind_an_earlier_failure_keeps_its_place() -> None:
    parking, batch = _parking(), Batch("dead-letters")
    Fragile(breaks_at=3).process(LOG, None, batch, parking)
    mended = Fragile(breaks_at=0)
    mended.process(LOG, None, batch, parking)
    parked = parking.get("fragile/0/a")
    assert parked is not None
    assert parked.offsets == (0, 1, 3)
    assert mended.handled == [2]


def test_a_key_that_is_parked_in_another_topic_is_parked_anew_with_its_own_offsets() -> None:
    """The next release gives a policy another source."""
    parking, batch, moved = _parking(), Batch("dead-letters"), Fragile(breaks_at=2)
    Fragile(breaks_at=0).process(LOG, None, batch, parking)
    log = [MemoryRecord("stall.events.v1", b"a", b"", offset) for offset in range(5)]
    moved.process(log[:4], None, batch, parking)
    parking.drop("fragile/0/a", 4)
    moved.process(log[4:], None, batch, parking)
    assert moved.handled == [0, 1]
    parked = parking.get("fragile/0/a@stall.events.v1")
    assert parked is not None
    assert (parked.topic, parked.offsets) == ("stall.events.v1", (2, 3, 4))


UNREADABLE = b"\xff"
UNREADABLE_ID = "sha256:" + sha256(UNREADABLE).hexdigest()


@pytest.mark.parametrize(
    ("key", "other", "offset"),
    [
        (f"a@{FACTS.name}", b"a", 3),
        (f"@{FACTS.name}@3", None, 3),
        (UNREADABLE_ID, UNREADABLE, 3),
    ],
)
def test_no_key_can_be_chosen_so_that_it_stops_another_one(key: str, other: bytes | None, offset: int) -> None:
    parking = _parking()
    parking.park("fragile", MemoryRecord(FACTS.name, key.encode(), b"", 0), processors.BEHIND)
    assert parking.holds("fragile", MemoryRecord(FACTS.name, key.encode(), b"", 1))
    assert not parking.holds("fragile", MemoryRecord(FACTS.name, cast(bytes, other), b"", offset))


def test_such_a_key_that_an_earlier_release_has_parked_stays_parked_until_it_is_released() -> None:
    parking, key = _parking(), f"a@{FACTS.name}"
    parked = Parked(processor="fragile", topic=FACTS.name, partition=0, offset=0, code="bad", reason="", attempts=1)
    parking.keep(f"fragile/0/{key}", parked)
    parking.park("fragile", MemoryRecord(FACTS.name, key.encode(), b"", 1), processors.BEHIND)
    assert list(parking.offsets(f"fragile/0/{key}")) == [0, 1]
    parking.drop(f"fragile/0/{key}", 2)
    assert not parking.holds("fragile", MemoryRecord(FACTS.name, key.encode(), b"", 2))


class Place(Command):
    TYPE = "shop.place"


class Placed(Event):
    TYPE = "shop.placed"


class Paid(Event):
    TYPE = "shop.paid"


class Returned(Event):
    """An event of the next release."""

    TYPE = "shop.returned"


COMMANDS = Topic("shop.commands.v1")
DECIDER: Decider[Any, Any, Any] = Decider(
    lambda *_: [], lambda state, _: state, initial=0, commands=(Place,), events=(Placed, Paid), state=int
)
OWN = AggregateProcessor(DECIDER, table=Table("shops", source=COMMANDS), events=FACTS)


def listeners() -> list[PolicyProcessor | ProjectionProcessor | RekeyProcessor]:
    """Each handles `Placed` only."""
    view = Table("view", source=FACTS)
    return [
        PolicyProcessor(Policy(lambda _: (), source=FACTS, events=(Placed,), commands={})),
        ProjectionProcessor(Projection(view, lambda seen, *_: seen, initial=0, events=(Placed,), state=int)),
        RekeyProcessor(Rekey({Topic("shop.by-day.v1"): lambda _: ()}, source=FACTS, events=(Placed,))),
    ]


@pytest.mark.parametrize("listener", listeners(), ids=lambda each: each.name)
def test_an_unknown_event_of_the_same_service_is_parked_for_a_later_release(listener: Processor) -> None:
    by_source(Topology("shop", (FACTS,)), [OWN, listener])
    assert heard(listener, Paid()) is None
    assert heard(listener, Returned()) == Failure("message.unknown", "unknown type 'shop.returned'")


@pytest.mark.parametrize("listener", listeners(), ids=lambda each: each.name)
def test_an_unknown_event_of_another_service_is_skipped(listener: Processor) -> None:
    by_source(Topology("sales", ()), [listener])
    assert heard(listener, Returned()) is None


def test_a_view_or_a_copier_of_no_events_is_refused() -> None:
    with pytest.raises(ValueError, match="no message types"):
        Projection(Table("view", source=FACTS), lambda seen, *_: seen, initial=0, events=(), state=int)
    with pytest.raises(ValueError, match="no message types"):
        RekeyProcessor(Rekey({Topic("shop.by-day.v1"): lambda _: ()}, source=FACTS, events=()))


def test_a_copier_wants_several_keys_not_one_text() -> None:
    rekey = RekeyProcessor(Rekey({Topic("shop.by-day.v1"): lambda _: "monday"}, source=FACTS, events=(Placed,)))
    failure = heard(rekey, Placed())
    assert failure is not None
    assert "fix: give ['monday']" in failure.reason


@pytest.mark.parametrize("key", ["", "x" * 129, "a\n", ".", None, 5])
def test_a_copier_parks_an_event_of_which_a_key_is_no_aggregate_id(key: Any) -> None:
    """Nobody would read the copy."""
    rekey = RekeyProcessor(Rekey({Topic("shop.by-day.v1"): lambda _: ["monday", key]}, source=FACTS, events=(Placed,)))
    failure = heard(rekey, Placed())
    assert failure is not None
    assert failure.code == "processor.failed"
    assert "ValueError: a key for shop.by-day.v1: " in failure.reason
    assert failure.reason.endswith("fix: leave it out, or give the field the type AggregateId in the command")


def heard(listener: Processor, event: Event) -> Failure | None:
    story = {"event_id": "e", "aggregate_id": "a", "correlation_id": "c"}
    body = EventCodec([type(event)]).write(event, **story, sequence=1, occurred_at=datetime(2026, 1, 1, tzinfo=UTC))
    rows = Rows("", cast(RowStore, Nothing()), 0, None, listener.codec) if listener.codec else None
    return listener.attempt(MemoryRecord(FACTS.name, b"a", body, 0), rows, Batch("dead-letters"))


def _parking() -> Parking:
    return Parking(Rows("", cast(RowStore, Nothing()), 0, None, PARKED_CODEC), set())
