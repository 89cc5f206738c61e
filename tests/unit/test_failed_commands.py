"""A command that failed takes effect once at most, whatever is retried, repeated and forgotten."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.decider import Decider
from shared.domain.message import Command, Event
from shared.domain.outcomes import OUTCOME_CODEC
from shared.domain.row import FAILURES_KEPT
from shared.domain.state import State
from shared.engine.batch import Batch, Refusal
from shared.engine.processors import AggregateProcessor
from shared.parking.parked import PARKED_CODEC, Failure
from shared.parking.parking import Parking, place_id
from shared.runtime.positions import Place
from shared.tables.rows import Rows
from shared.tables.store import RowStore, StoreFailed
from shared.testing.conversation import MemoryRecord
from shared.topology.topics import HOUR_MS, Table, Topic

COMMANDS, EVENTS = Topic("tanks.commands.v1"), Topic("tanks.events.v1")
TANKS = Table("tanks", source=COMMANDS)


class Pour(Command):
    TYPE = "tank.pour"

    litres: int


class Poured(Event):
    TYPE = "tank.poured"

    litres: int


class Tank(State):
    litres: int = 0


def decide(command: Pour, _: Tank) -> list[Poured]:
    if command.litres < 0:
        raise ZeroDivisionError
    return [Poured(litres=command.litres)]


SOUND: Decider[Pour, Poured, Tank] = Decider(
    decide=lambda command, _: [Poured(litres=command.litres)],
    evolve=lambda tank, event: Tank(litres=tank.litres + event.litres),
    initial=Tank(),
    commands=(Pour,),
    events=(Poured,),
    state=Tank,
)
FAULTY = replace(SOUND, decide=decide)


class Nothing:
    """A store without a row."""

    def get(self, _partition: int, _key: bytes) -> None:
        return None


class Service:
    """The aggregate of tank `a`, faulty until it is mended."""

    def __init__(self) -> None:
        self.rows = Rows("", cast(RowStore, Nothing()), 0, 1, SOUND.row_codec)
        self.rows.outcomes = Rows("", cast(RowStore, Nothing()), 0, None, OUTCOME_CODEC)
        self.parking = Parking(Rows("", cast(RowStore, Nothing()), 0, None, PARKED_CODEC), set())
        self.batch = Batch("dead-letters")
        self.decider: Decider[Any, Any, Any] = FAULTY
        self._offsets = count()

    def send(self, command_id: str, litres: int, at_ms: int = 0) -> MemoryRecord:
        wrapped = SOUND.command_codec.wrap(
            Pour(litres=litres), command_id=command_id, aggregate_id="a", issued_at=datetime(2026, 1, 1, tzinfo=UTC)
        )
        said = MemoryRecord(
            COMMANDS.name, b"a", SOUND.command_codec.encode(wrapped), next(self._offsets), timestamp=at_ms
        )
        self._aggregate.process([said], self.rows, self.batch, self.parking)
        return said

    def retry(self, said: MemoryRecord, at_ms: int = 0) -> Failure | None:
        """As an operator asks for it, while it is parked."""
        place = place_id(TANKS.name, said)
        if self.parking.get(place) is None:
            return None
        failure = self._aggregate.attempt(said, self.rows, self.batch, retried_ms=at_ms)
        if failure is None:
            self.parking.drop(place, 1)
        return failure

    @property
    def effects(self) -> list[str]:
        """The ids of the commands that led to an event."""
        decode = SOUND.event_codec.decode
        return [decode(each.value).causation_id or "" for each in self.batch.records if each.topic == EVENTS.name]

    @property
    def _aggregate(self) -> AggregateProcessor:
        return AggregateProcessor(self.decider, table=TANKS, events=EVENTS)


@pytest.fixture
def service() -> Service:
    return Service()


def test_a_retry_is_refused_once_nothing_says_any_more_what_became_of_it(service: Service) -> None:
    first = service.send("c0", -1)
    for number in range(1, FAILURES_KEPT + 1):
        service.send(f"c{number}", -1)
    service.decider = SOUND
    failure = service.retry(first, at_ms=25 * HOUR_MS)
    assert failure is not None
    assert failure.code == "command.overtaken"
    assert service.effects == []


@pytest.mark.parametrize("is_repeated", [True, False])
def test_a_retry_within_a_day_needs_no_failure_in_the_row_for_a_repeat_would_be_known(
    service: Service, is_repeated: bool
) -> None:
    first = service.send("c0", -1)
    for number in range(1, FAILURES_KEPT + 1):
        service.send(f"c{number}", -1)
    service.decider = SOUND
    if is_repeated:
        service.send("c0", -1, at_ms=HOUR_MS)
    assert service.retry(first, at_ms=24 * HOUR_MS) is None
    assert service.effects == ["c0"]


class Broken:
    """A store whose disk fails."""

    def get(self, partition: int, _key: bytes) -> None:
        raise StoreFailed(cast(RowStore, SimpleNamespace(table_name="tanks")), partition, OSError("I/O error"))


def test_a_disk_that_fails_while_a_failure_is_recorded_is_no_outcome(service: Service) -> None:
    """The engine wipes that store and reads the command again; else nobody would ever get the outcome."""
    refused = {("tanks", Place(COMMANDS.name, 0), 0): Refusal("too large", times=1)}
    service.batch = Batch("dead-letters", refused)
    service.rows.store = cast(RowStore, Broken())
    with pytest.raises(StoreFailed):
        service.send("c0", 1)
    assert service.batch.records == []
    service.rows.store = cast(RowStore, Nothing())
    service._offsets = count()
    service.send("c0", 1)
    assert [outcome.code for _, outcome in service.batch.outcomes] == ["record.too_large"]


def test_a_retry_after_days_is_known_from_then_on(service: Service) -> None:
    first = service.send("c0", -1)
    service.decider = SOUND
    days_ms = 3 * 24 * HOUR_MS
    assert service.retry(first, days_ms) is None
    service.send("c0", -1, days_ms + 23 * HOUR_MS)
    assert service.effects == ["c0"]


def test_a_command_of_a_later_release_holds_up_its_key(service: Service) -> None:
    unknown = MemoryRecord(COMMANDS.name, b"a", service.send("c0", 1).value.replace(b"tank.pour", b"tank.drain"), 10)
    aggregate = AggregateProcessor(FAULTY, table=TANKS, events=EVENTS)
    aggregate.process([unknown], service.rows, service.batch, service.parking)
    parked = service.parking.get("tanks/0/a")
    assert parked is not None
    assert parked.code == "message.unknown"


@given(st.lists(st.tuples(st.sampled_from(["send", "mend", "retry"]), st.integers(0, 5)), max_size=120))
def test_no_command_takes_effect_twice(steps: list[tuple[str, int]]) -> None:
    service = Service()
    sent: list[MemoryRecord] = []
    for step, number in steps:
        match step:
            case "send":
                sent.append(service.send(f"c{number}", -1 if number else 1))
            case "mend":
                service.decider = SOUND
            case "retry":
                for said in sent[number::6]:
                    service.retry(said)
    assert len(service.effects) == len(set(service.effects))
