"""A command takes effect once within its service's window, whatever comes between, and again after it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.outcomes import OUTCOME_CODEC, key_of, recalled
from shared.domain.row import Outcome
from shared.engine.batch import Batch
from shared.engine.processors import AggregateProcessor
from shared.tables.rows import Rows
from shared.tables.store import RowStore
from shared.testing.conversation import MemoryRecord
from shared.topology.topics import HOUR_MS, outcomes_of
from tests.accounts.domain.commands import AccountCommand, Charge, OpenAccount
from tests.accounts.domain.decide import DECIDER
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS

AGGREGATE = AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)
KEPT_MS = outcomes_of(ACCOUNTS).kept_ms
BEGAN_MS = 1_700_000_000_000


class Store(dict[bytes, bytes]):
    def get(self, _partition: int, key: bytes) -> bytes | None:  # type: ignore[override]
        return super().get(key)


class Ledger:
    """The account `ann`. Each command is a batch of its own, so rows and outcomes pass through their tables."""

    def __init__(self) -> None:
        self.accounts = Store()
        self.outcomes = Store()
        self.events: list[bytes] = []
        self._offset = 100

    def send(self, command: AccountCommand, command_id: str, after_ms: int = 0, cause: str | None = None) -> Outcome:
        """Its outcome. after_ms: since it all began."""
        wrapped = DECIDER.command_codec.wrap(
            command,
            command_id=command_id,
            aggregate_id="ann",
            issued_at=datetime(2026, 1, 1, tzinfo=UTC),
            causation_id=cause,
        )
        return self.handle(DECIDER.command_codec.encode(wrapped), after_ms)

    def handle(self, value: bytes, after_ms: int = 0) -> Outcome:
        self._offset += 1
        said = MemoryRecord(COMMANDS.name, b"ann", value, self._offset, timestamp=BEGAN_MS + after_ms)
        rows = Rows("", cast(RowStore, self.accounts), 0, 1, DECIDER.row_codec, careful=True)
        rows.outcomes = Rows("", cast(RowStore, self.outcomes), 0, None, OUTCOME_CODEC, careful=True)
        batch = Batch("dead-letters")
        assert AGGREGATE.attempt(said, rows, batch) is None
        self.accounts.update({key: value for key, value in rows.encoded().items() if value is not None})
        self.outcomes.update({key: value for key, value in rows.outcomes.encoded().items() if value is not None})
        self.events += [each.value or b"" for each in batch.records if each.topic == EVENTS.name]
        [(_, outcome)] = batch.outcomes
        return outcome

    @property
    def effects(self) -> Counter[str]:
        """By the id of the command."""
        return Counter(DECIDER.event_codec.decode(event).causation_id or "" for event in self.events)

    @property
    def event_ids(self) -> list[str]:
        return [DECIDER.event_codec.decode(event).event_id for event in self.events]


@pytest.fixture
def ledger() -> Ledger:
    opened = Ledger()
    opened.send(OpenAccount(), "open")
    return opened


@pytest.mark.parametrize("between", [33, 500])
def test_a_command_is_known_after_many_others_of_a_busy_key(ledger: Ledger, between: int) -> None:
    first = ledger.send(Charge(amount_cents=7), "c")
    for number in range(between):
        ledger.send(Charge(amount_cents=1), f"c-{number}", number, "an event" if number % 2 else None)
    assert ledger.send(Charge(amount_cents=7), "c", KEPT_MS) == first
    assert ledger.effects["c"] == 1


def test_a_row_keeps_no_outcome_of_what_was_decided(ledger: Ledger) -> None:
    before = len(ledger.accounts[b"ann"])
    for number in range(10):
        ledger.send(Charge(amount_cents=1), f"c-{number}", number)
    assert len(ledger.accounts[b"ann"]) <= before + 4


def test_after_the_window_a_repeat_is_another_command_with_events_of_its_own(ledger: Ledger) -> None:
    ledger.send(Charge(amount_cents=7), "c", 10)
    again = ledger.send(Charge(amount_cents=7), "c", 10 + KEPT_MS + 1)
    assert (again.sequence, ledger.effects["c"]) == (3, 2)
    assert len(set(ledger.event_ids)) == len(ledger.event_ids) == 3
    assert ledger.send(Charge(amount_cents=7), "c", 10 + 2 * KEPT_MS) == again


def test_a_refusal_is_known_as_long(ledger: Ledger) -> None:
    refused = ledger.send(Charge(amount_cents=0), "c")
    assert refused.code
    assert recalled(_get(ledger), "ann", "c") == refused
    assert ledger.send(Charge(amount_cents=5), "c", KEPT_MS) == refused


def test_the_outcome_of_another_aggregates_command_with_the_same_id_is_another(ledger: Ledger) -> None:
    ledger.send(Charge(amount_cents=7), "c")
    assert recalled(_get(ledger), "bob", "c") is None
    assert key_of("a", "b\0c") != key_of("a b", "c")


def test_a_window_is_at_least_a_day() -> None:
    assert KEPT_MS >= 24 * HOUR_MS


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(-1, 5), st.integers(0, KEPT_MS // 4), st.booleans()), max_size=150
    )
)
def test_no_command_takes_effect_twice_within_the_window(sent: list[tuple[int, int, int, bool]]) -> None:
    ledger, now_ms = Ledger(), 0
    ledger.send(OpenAccount(), "open")
    decided: dict[str, tuple[int, Outcome]] = {}
    for number, cents, pause_ms, by_policy in sent:
        now_ms += pause_ms
        command_id, before = f"c-{number}", len(ledger.events)
        outcome = ledger.send(Charge(amount_cents=cents), command_id, now_ms, "an event" if by_policy else None)
        at, known = decided.get(command_id, (-KEPT_MS - 1, None))
        if now_ms - at <= KEPT_MS:
            assert (outcome, len(ledger.events)) == (known, before)
        else:
            decided[command_id] = now_ms, outcome
    assert len(set(ledger.event_ids)) == len(ledger.event_ids)


def _get(ledger: Ledger):  # type: ignore[no-untyped-def]
    return Rows("", cast(RowStore, ledger.outcomes), 0, None, OUTCOME_CODEC).get
