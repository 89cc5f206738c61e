"""The history index: in any history each event is found, and the states around it are the fold of the events."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.decider import fold
from shared.domain.envelope import EventEnvelope
from shared.domain.errors import BadMessage
from shared.domain.history_index import EVENTS_PER_ENTRY, HistoryEntry, continued, number_of
from shared.domain.row import Row, RowCodec
from shared.engine.processors import AggregateProcessor, RekeyProcessor
from shared.engine.wiring import wired
from shared.topology.rekey import Rekey
from shared.topology.topics import Topic
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountCharged, AccountEvent, AccountOpened
from tests.accounts.domain.state import Open
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def event(sequence: int, hours: int = 0) -> EventEnvelope[AccountEvent]:
    raw = DECIDER.event_codec.write(
        AccountOpened() if sequence == 1 else AccountCharged(amount_cents=sequence),
        event_id=f"e{sequence}",
        aggregate_id="ann",
        sequence=sequence,
        occurred_at=BEGIN + timedelta(hours=hours),
        correlation_id="c",
    )
    return DECIDER.event_codec.decode(raw)


def written(hours: list[int], first: int = 1) -> dict[int, HistoryEntry[Open]]:
    """The index entries of a history, each event's offset 10 times its sequence."""
    entries: dict[int, HistoryEntry[Open]] = {}
    last = None
    for sequence, hour in enumerate(hours, first):
        last = continued(last, event(sequence, hour), 10 * sequence, DECIDER)
        entries[number_of(sequence)] = last
    return entries


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=3 * EVENTS_PER_ENTRY + 7))
def test_every_event_is_in_one_entry_between_the_folds_before_and_after(hours: list[int]) -> None:
    for number, entry in written(hours).items():
        assert entry.offsets == tuple(10 * n for n in range(entry.first, entry.last + 1))
        assert {number_of(entry.first), number_of(entry.last)} == {number}
        assert entry.before == fold(DECIDER.evolve, [event(n).data for n in range(1, entry.first)], DECIDER.initial)
        assert entry.after == fold(DECIDER.evolve, [event(n).data for n in range(1, entry.last + 1)], DECIDER.initial)
        assert entry.latest == BEGIN + timedelta(hours=max(hours[: entry.last]))


def test_an_entry_survives_its_way_through_the_table() -> None:
    codec: RowCodec[HistoryEntry[Open]] = RowCodec(HistoryEntry[DECIDER.state])  # type: ignore[name-defined]
    row = Row(3, written([1, 3, 2])[0], {}, 30)
    assert codec.decode(codec.encode(row)) == row


def test_a_history_whose_beginning_was_never_read_has_its_events_and_no_states() -> None:
    entries = written([0] * 100, first=17)
    assert [(e.first, e.before, e.after) for e in entries.values()] == [
        (17, None, None), (51, None, None), (101, None, None)
    ]  # fmt: skip


@pytest.mark.parametrize("sequence", [1, 2, 4])
def test_an_event_that_does_not_follow_is_refused(sequence: int) -> None:
    with pytest.raises(BadMessage, match=f"sequence {sequence} follows 2"):
        continued(written([0, 0])[0], event(sequence), 99, DECIDER)


@pytest.mark.parametrize("entry", [None, written([0, 0])[0]])
def test_an_event_after_which_there_is_no_state_is_not_taken_for_an_unknown_state(
    entry: HistoryEntry[Open] | None,
) -> None:
    """Reads of the past would answer that retention has removed it."""
    forgetful: Any = replace(DECIDER, evolve=lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^evolve gives None after account\.\w+, .*; fix: give it a phase, such as"):
        continued(entry, event(3 if entry else 1), 99, forgetful)


def test_a_history_that_is_copied_is_refused_at_start_up() -> None:
    """It would be copied again when the next version reads its history from the start of the log."""
    copies = RekeyProcessor(Rekey({Topic("accounts.copies.v1"): lambda _: []}, source=EVENTS, events=[AccountOpened]))
    aggregate = AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)
    with pytest.raises(ValueError, match=r"also reads accounts\.events\.v1.* fix: move it"):
        wired(TOPOLOGY, [aggregate, copies])


def test_a_history_that_no_aggregate_writes_is_refused_at_start_up() -> None:
    with pytest.raises(ValueError, match="no aggregate writes its history"):
        wired(TOPOLOGY, [AggregateProcessor(DECIDER, table=ACCOUNTS, events=Topic("accounts.events.v2"))])


def test_a_history_whose_states_begin_with_none_is_refused_at_start_up() -> None:
    """None stands for a state that is unknown."""
    decider: Any = replace(DECIDER, initial=None, state=DECIDER.state | None)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"^accounts: its initial state is None, which means unknown in a history; fix:"
    ):
        wired(TOPOLOGY, [AggregateProcessor(decider, table=ACCOUNTS, events=EVENTS)])
