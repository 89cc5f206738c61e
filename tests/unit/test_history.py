"""Chapters: in any history each event is found, and the states around it are the fold of the events."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import AccountCharged, AccountEvent, AccountOpened
from services.accounts.domain.state import Open
from services.accounts.topology import ACCOUNTS, COMMANDS, EVENTS, TOPOLOGY
from shared.es.decider import fold
from shared.es.envelope import EventEnvelope
from shared.es.errors import BadMessage
from shared.es.personal import Personal
from shared.es.row import Row, RowCodec
from shared.es.state import State
from shared.history import EVENTS_A_CHAPTER, Chapter, continued, number_of
from shared.policy import Reaction
from shared.read_model import ReadModel
from shared.streams.processors import Aggregate, Delay, Policy, Projection, with_history
from shared.topology import KEPT_FOR_EVER, Table, Topic, Topology

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


def written(hours: list[int], first: int = 1) -> dict[int, Chapter[Open]]:
    """The chapters of a history, each event's offset 10 times its sequence."""
    chapters: dict[int, Chapter[Open]] = {}
    last = None
    for sequence, hour in enumerate(hours, first):
        last = continued(last, event(sequence, hour), 10 * sequence, DECIDER)
        chapters[number_of(sequence)] = last
    return chapters


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=3 * EVENTS_A_CHAPTER + 7))
def test_every_event_is_in_one_chapter_between_the_folds_before_and_after(hours: list[int]) -> None:
    for number, chapter in written(hours).items():
        assert chapter.offsets == tuple(10 * n for n in range(chapter.first, chapter.last + 1))
        assert {number_of(chapter.first), number_of(chapter.last)} == {number}
        assert chapter.before == fold(DECIDER.evolve, [event(n).data for n in range(1, chapter.first)], DECIDER.initial)
        assert chapter.after == fold(
            DECIDER.evolve, [event(n).data for n in range(1, chapter.last + 1)], DECIDER.initial
        )
        assert chapter.latest == BEGIN + timedelta(hours=max(hours[: chapter.last]))


def test_a_chapter_survives_its_way_through_the_table() -> None:
    codec: RowCodec[Chapter[Open]] = RowCodec(Chapter[DECIDER.state])  # type: ignore[name-defined]
    row = Row(3, written([1, 3, 2])[0], {}, 30)
    assert codec.decode(codec.encode(row)) == row


def test_a_history_whose_beginning_was_never_read_has_its_events_and_no_states() -> None:
    chapters = written([0] * 100, first=17)
    assert [(c.first, c.before, c.after) for c in chapters.values()] == [
        (17, None, None), (51, None, None), (101, None, None)
    ]  # fmt: skip


@pytest.mark.parametrize("sequence", [1, 2, 4])
def test_an_event_that_does_not_follow_is_refused(sequence: int) -> None:
    with pytest.raises(BadMessage, match=f"sequence {sequence} follows 2"):
        continued(written([0, 0])[0], event(sequence), 99, DECIDER)


@pytest.mark.parametrize("chapter", [None, written([0, 0])[0]])
def test_an_event_after_which_there_is_no_state_is_not_taken_for_an_unknown_state(
    chapter: Chapter[Open] | None,
) -> None:
    """Reads of the past would answer that retention has removed it."""
    forgetful: Any = replace(DECIDER, evolve=lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^evolve gives None after account\.\w+, .*; fix: give it a phase, such as"):
        continued(chapter, event(3 if chapter else 1), 99, forgetful)


def test_a_history_that_a_policy_reads_is_refused_at_start_up() -> None:
    """It would send its commands again when the next version reads its chapters from the start of the log."""
    policy = Policy(Reaction(lambda event: [], source=EVENTS, events=[AccountOpened], commands={}))
    aggregate = Aggregate(DECIDER, table=ACCOUNTS, events=EVENTS)
    with pytest.raises(ValueError, match=r"also reads accounts\.events\.v1.* fix: move it"):
        with_history(TOPOLOGY, [aggregate, policy])


def test_a_history_that_no_aggregate_writes_is_refused_at_start_up() -> None:
    with pytest.raises(ValueError, match="no aggregate writes its history"):
        with_history(TOPOLOGY, [Aggregate(DECIDER, table=ACCOUNTS, events=COMMANDS)])


def test_a_history_whose_states_begin_with_none_is_refused_at_start_up() -> None:
    """None stands for a state that is unknown."""
    decider: Any = replace(DECIDER, initial=None, state=DECIDER.state | None)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"^accounts: its initial state is None, which means unknown in a history; fix:"
    ):
        with_history(TOPOLOGY, [Aggregate(decider, table=ACCOUNTS, events=EVENTS)])


def test_a_table_that_no_processor_fills_is_refused_at_start_up() -> None:
    with pytest.raises(ValueError, match=r"^accounts: no processor fills the table accounts; fix: add one to its"):
        with_history(TOPOLOGY, [])


def test_a_processor_of_an_undeclared_table_is_refused_at_start_up() -> None:
    aggregate = Aggregate(DECIDER, table=ACCOUNTS, events=EVENTS)
    with pytest.raises(ValueError, match=r"its topology lacks the table others, .*; fix: add it to `tables`"):
        with_history(replace(TOPOLOGY, history=None), [aggregate, view_in(Table("others", source=EVENTS))])


def test_a_second_aggregate_is_refused_at_start_up() -> None:
    """Their events would follow each other's under one id, and each would be folded with the other's decider."""
    tables = (ACCOUNTS, Table("wallets", source=COMMANDS))
    aggregates = [Aggregate(DECIDER, table=table, events=EVENTS) for table in tables]
    with pytest.raises(
        ValueError, match=r"^accounts has several aggregates, accounts, wallets, .*; fix: put each of the others into a"
    ):
        with_history(replace(TOPOLOGY, tables=tables), aggregates)


@pytest.mark.parametrize("compacted", [COMMANDS, EVENTS], ids=lambda topic: topic.kind)
def test_commands_and_events_that_are_compacted_are_refused_at_start_up(compacted: Topic) -> None:
    """Brokers would remove a command that no worker has read, or an event that history and `rebuild` need."""
    lossy = replace(compacted, cleanup="compact")
    commands, events = (lossy if topic == compacted else topic for topic in (COMMANDS, EVENTS))
    accounts = replace(ACCOUNTS, source=commands)
    topology = replace(TOPOLOGY, topics=(commands, events), tables=(accounts,), history=events)
    with pytest.raises(ValueError, match=rf"^accounts: {compacted.name} is compacted, .*; fix: leave out its"):
        with_history(topology, [Aggregate(DECIDER, table=accounts, events=events)])


def test_a_view_may_read_a_compacted_topic() -> None:
    results = Topic("accounts.results.v1", cleanup="compact")
    table = Table("latest", source=results)
    model = ReadModel(table, lambda view, *_: view, initial=None, events=(AccountOpened,), state=Basket | None)
    with_history(Topology("accounts", (results,), (table,)), [Projection(model)])


def set_timers(kept_ms: int) -> None:
    timers = Topic("accounts.timers.v1", retention_ms=kept_ms)
    with_history(Topology("accounts", (timers,)), [Delay(source=timers, target=COMMANDS, delay_s=3600)])


@pytest.mark.parametrize("kept_ms", [1000, 3_600_000])
def test_timers_that_their_topic_does_not_keep_until_they_are_due_are_refused_at_start_up(kept_ms: int) -> None:
    with pytest.raises(ValueError, match=rf"waits 3600 s, .* for {kept_ms // 1000} s; fix: raise its retention_ms"):
        set_timers(kept_ms)


@pytest.mark.parametrize("kept_ms", [KEPT_FOR_EVER, 3_600_001])
def test_timers_that_are_kept_longer_than_they_wait_are_accepted(kept_ms: int) -> None:
    set_timers(kept_ms)


def test_an_index_on_no_field_of_the_state_is_refused_at_start_up() -> None:
    table = replace(ACCOUNTS, indexes=("phase", "balance"))
    aggregate = Aggregate(DECIDER, table=table, events=EVENTS)
    with pytest.raises(ValueError, match=r"the state in the table accounts has no field 'balance'; fix: correct its"):
        with_history(replace(TOPOLOGY, tables=(table,)), [aggregate])


class Basket(State):
    lines: tuple[str, ...] = ()
    inner: State | None = None
    label: str | list[str] = ""
    name: Personal = None
    price: Decimal | None = None
    waited: timedelta = timedelta()
    nothing: None = None
    anything: Any = None


def view_in(table: Table) -> Projection:
    return Projection(
        ReadModel(table, lambda view, *_: view, initial=Basket(), events=(AccountOpened,), state=Basket | None)
    )


def index_baskets(field: str) -> None:
    table = Table("baskets", source=EVENTS, indexes=(field,))
    with_history(replace(TOPOLOGY, tables=(table,), history=None), [view_in(table)])


@pytest.mark.parametrize(
    ("field", "kind"), [("lines", "array"), ("inner", "null or object"), ("name", "encrypted or null")]
)
def test_an_index_on_what_has_no_order_is_refused_at_start_up(field: str, kind: str) -> None:
    """Otherwise the first row with a value would stop the worker."""
    with pytest.raises(
        ValueError, match=rf"{field!r} in the table baskets is {kind} in JSON, and an index holds null, .*; fix: index"
    ):
        index_baskets(field)


@pytest.mark.parametrize(("field", "kind"), [("price", "decimal"), ("waited", "duration")])
def test_an_index_on_what_would_sort_as_text_is_refused_at_start_up(field: str, kind: str) -> None:
    """11900.00 would come before 1190.00."""
    with pytest.raises(
        ValueError, match=rf"{field!r} in the table baskets is a {kind}, .* as text; fix: index a whole"
    ):
        index_baskets(field)


@pytest.mark.parametrize("field", ["label", "nothing", "anything"])
def test_an_index_on_what_may_have_an_order_is_accepted(field: str) -> None:
    index_baskets(field)
