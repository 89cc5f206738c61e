"""A parked command that an operator corrects takes effect once, in its place, whatever else is asked or sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import pytest

from shared.domain.outcomes import OUTCOME_CODEC
from shared.domain.row import Outcome
from shared.engine.batch import Batch
from shared.engine.processors import AggregateProcessor
from shared.engine.retries import OperatorRequests
from shared.engine.sources import Source
from shared.engine.wiring import processors_of
from shared.parking.parked import PARKED_CODEC, Failure, OperatorRequest, Parked
from shared.parking.parking import Parking, place_id
from shared.runtime.positions import Place
from shared.tables.rows import Rows
from shared.tables.store import RowStore
from shared.testing.conversation import MemoryRecord
from shared.topology.topics import HOUR_MS
from tests.accounts.service import SERVICE
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS, TOPOLOGY

BAD = {"amount_cents": "12"}
UNKNOWN = {"amount_cents": 12, "more": 1}
GOOD = {"amount_cents": 12}
KEY = "accounts/0/zoe"


class Nothing:
    """A store without a row."""

    def get(self, _partition: int, _key: bytes) -> None:
        return None


class Worker:
    """Owns the account `zoe`, which is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (self.aggregate,) = [each for each in processors_of(SERVICE) if isinstance(each, AggregateProcessor)]
        self.rows = Rows("", cast(RowStore, Nothing()), 0, 1, self.aggregate.decider.row_codec)
        self.rows.outcomes = Rows("", cast(RowStore, Nothing()), 0, None, OUTCOME_CODEC)
        self.parking = Parking(Rows("", cast(RowStore, Nothing()), 0, None, PARKED_CODEC), set())
        self.batch = Batch("dead-letters")
        self.log: list[MemoryRecord] = []
        self.now_ms = 0
        monkeypatch.setattr(OperatorRequests, "_reread", self._reread)
        self.send("opening", {}, "account.open")

    def send(self, id_: str, data: object, type_: str = "account.charge", **more: object) -> MemoryRecord:
        value = command(id_, data, type_, **more)
        said = MemoryRecord(COMMANDS.name, b"zoe", value, len(self.log), timestamp=self.now_ms)
        self.log.append(said)
        self.aggregate.process([said], self.rows, self.batch, self.parking)
        return said

    def ask(
        self, action: Literal["retry", "discard", "correct"], said: MemoryRecord, value: bytes | None = None
    ) -> None:
        """Of the letter that has the record, under its place or its key."""
        at_place = place_id(ACCOUNTS.name, said)
        id_ = at_place if self.parking.get(at_place) else KEY
        request = OperatorRequest(
            action=action, id=id_, offset=said.offset, value=None if value is None else value.decode()
        )
        place = Place(COMMANDS.name, 0)
        source = Source(place, [self.aggregate], position=len(self.log), end=len(self.log))
        requests = OperatorRequests(TOPOLOGY, {place: source}, cast(Any, None))

        def attempt(_: object, record: Any) -> Failure | None:
            return self.aggregate.attempt(record, self.rows, self.batch, retried_ms=self.now_ms)

        asyncio.run(requests.fulfil(request, self.parking, attempt, self.batch.bury))

    async def _reread(self, _: Place, offsets: Sequence[int]) -> tuple[Mapping[int, MemoryRecord], Failure]:
        return {offset: self.log[offset] for offset in offsets}, Failure("gone", "")

    @property
    def balance(self) -> int:
        row = self.rows.get(b"zoe")
        assert row is not None
        return int(row.state.balance_cents)

    @property
    def last(self) -> Outcome:
        return self.batch.outcomes[-1][1]

    def letters(self) -> list[Parked]:
        return [found for id_ in sorted(self.parking._ids) if (found := self.parking.get(id_))]


def command(id_: str, data: object, type_: str = "account.charge", **more: object) -> bytes:
    envelope = {
        "command_id": id_,
        "type": type_,
        "schema_version": 1,
        "aggregate_id": "zoe",
        "issued_at": "2026-11-20T10:00:00Z",
        "correlation_id": "story",
        "data": data,
    }
    return json.dumps(envelope | more).encode()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


@pytest.mark.parametrize("data", [BAD, UNKNOWN])
def test_a_corrected_command_is_decided_in_its_place_and_what_waits_behind_it_goes_on(
    worker: Worker, data: object
) -> None:
    parked = worker.send("c", data)
    worker.send("next", {"amount_cents": 1})
    worker.ask("correct", parked, command("c", GOOD))
    assert worker.letters() == []
    assert worker.balance == 13
    events = [json.loads(each.value or b"") for each in worker.batch.records if each.topic == EVENTS.name]
    assert {event["causation_id"] for event in events} == {"opening", "c", "next"}


@pytest.mark.parametrize("first", ["retry", "correct"])
def test_whatever_is_asked_beside_it_it_takes_effect_once(worker: Worker, first: Literal["retry", "correct"]) -> None:
    parked = worker.send("c", BAD)
    for action, amount in ((first, 5), ("correct", 12), ("correct", 12), ("retry", 0), ("discard", 0)):
        value = command("c", {"amount_cents": amount}) if action == "correct" else None
        worker.ask(cast(Any, action), parked, value)
    assert worker.balance == (5 if first == "correct" else 12)
    assert worker.letters() == []


@pytest.mark.parametrize("sent_first", [True, False])
def test_a_sender_that_sends_the_mended_command_again_meets_the_correction(worker: Worker, sent_first: bool) -> None:
    parked = worker.send("c", BAD)
    if sent_first:
        worker.send("c", GOOD)
    worker.ask("correct", parked, command("c", GOOD))
    if not sent_first:
        worker.send("c", GOOD)
    assert worker.balance == 12
    assert worker.letters() == []
    assert (worker.last.command_id, worker.last.code) == ("c", None)


def test_the_sequence_that_it_was_meant_for_counts(worker: Worker) -> None:
    parked = worker.send("c", BAD, expected_sequence=99)
    worker.ask("correct", parked, command("c", GOOD, expected_sequence=99))
    assert (worker.last.code, worker.balance) == ("sequence.mismatch", 0)


def test_what_still_can_not_be_handled_stays_parked_and_only_the_first_record_is_corrected(worker: Worker) -> None:
    parked = worker.send("c", UNKNOWN)
    behind = worker.send("next", {"amount_cents": 1})
    worker.ask("correct", behind, command("next", {"amount_cents": 7}))
    (left,) = worker.letters()
    assert (left.offset, left.attempts) == (parked.offset, 1)
    worker.ask("correct", parked, command("c", BAD))
    (left,) = worker.letters()
    assert (left.offset, left.code, worker.balance) == (parked.offset, "message.bad", 1)  # which holds up nothing
    worker.ask("correct", parked, command("c", GOOD))
    assert (worker.letters(), worker.balance) == ([], 13)


def test_whether_a_repeat_took_effect_is_known_for_as_long_as_outcomes_are(worker: Worker) -> None:
    parked = worker.send("c", BAD)
    worker.send("next", {"amount_cents": 1})
    worker.now_ms = 25 * HOUR_MS
    worker.ask("correct", parked, command("c", GOOD))
    (left,) = worker.letters()
    assert (left.code, worker.balance) == ("command.overtaken", 1)


@pytest.mark.parametrize("action", ["retry", "correct"])
@pytest.mark.parametrize("sent", [BAD, GOOD])
def test_what_took_effect_before_the_record_came_is_known_however_late_it_is_asked_for(
    worker: Worker, sent: object, action: Literal["retry", "correct"]
) -> None:
    first = worker.send("c", sent)
    worker.ask("correct", first, command("c", GOOD))
    worker.now_ms = 20 * HOUR_MS
    again = worker.send("c", BAD)
    worker.send("next", {"amount_cents": 1})
    worker.now_ms = 25 * HOUR_MS
    if action == "retry":  # as by a release that can read it
        worker.log[again.offset] = replace(again, value=command("c", GOOD))
    worker.ask(action, again, command("c", GOOD) if action == "correct" else None)
    assert (worker.balance, worker.letters()) == (13, [])
    assert (worker.last.command_id, worker.last.sequence) == ("c", 2)


def test_a_request_without_a_correction_is_one_that_earlier_releases_read() -> None:
    assert b"value" not in OperatorRequest(action="retry", id=KEY).record[1]
    assert b'"value":"{}"' in OperatorRequest(action="correct", id=KEY, offset=1, value="{}").record[1]
