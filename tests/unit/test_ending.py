"""Rows that end: deleted in the initial state, and begun again with the sequence going on; in any history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.doctor.finding import Severity
from shared.doctor.topics import harm_of
from shared.domain.decider import fold
from shared.domain.envelope import EventEnvelope
from shared.domain.row import Outcome, Row
from shared.engine.batch import Batch
from shared.engine.processors import Processor
from shared.engine.wiring import by_source, codecs_of, processors_of, wired
from shared.operations.provision import Difference, declared_topics
from shared.operations.reprocess import _ended
from shared.parking.parked import PARKED_CODEC
from shared.parking.parking import Parking
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.tables.rows import Rows
from shared.tables.store import RowStore
from shared.testing.conversation import MemoryRecord
from shared.testing.scenario import ViewScenario, happened
from shared.topology.declaration import Service
from shared.topology.replay import replay_of
from shared.topology.topics import HOUR_MS, Table, Topic, Topology
from tests.carts.domain import DECIDER, INITIAL, AddItem, Cart, CheckedOut, CheckOut, Filled, ItemAdded
from tests.carts.projections import PROJECTIONS, Waiting
from tests.carts.service import SERVICE
from tests.carts.topology import CARTS, COMMANDS, EVENTS, FRESH, TOPOLOGY, WAITING

Fact = EventEnvelope[ItemAdded | CheckedOut]
ADD, OUT = AddItem(item="tea"), CheckOut()
assert TOPOLOGY.outcomes is not None


class Store(dict[bytes, bytes]):
    def get(self, _partition: int, key: bytes) -> bytes | None:  # type: ignore[override]
        return super().get(key)


class Worker:
    """One partition. What was appended is handled in batches, as a worker does; events once they are asked for."""

    def __init__(self, service: Service = SERVICE) -> None:
        processors = wired(service.topology, processors_of(service))
        self.processors = by_source(service.topology, processors)
        self.codecs = codecs_of(service.topology, processors)
        self.stores: dict[str, Store] = defaultdict(Store)
        self.logs: dict[str, list[MemoryRecord]] = defaultdict(list)
        self.outcomes: list[Outcome] = []
        self.deleted: list[tuple[str, bytes]] = []
        self._handled: dict[str, int] = defaultdict(int)

    def append(self, cart: str, command: AddItem | CheckOut, *, id_: str = "", expected: int | None = None) -> None:
        codec, number = DECIDER.command_codec, len(self.logs[COMMANDS.name])
        wrapped = codec.wrap(
            command,
            command_id=id_ or f"c{number}",
            aggregate_id=cart,
            issued_at=datetime(2026, 1, 1, tzinfo=UTC),
            correlation_id="story",
            expected_sequence=expected,
        )
        self._append(COMMANDS.name, cart.encode(), codec.encode(wrapped))

    def send(self, cart: str, command: AddItem | CheckOut, **said: Any) -> Outcome:
        self.append(cart, command, **said)
        self.handle(COMMANDS)
        return self.outcomes[-1]

    def handle(self, topic: Topic, *, again_from: int | None = None) -> None:
        """All that waits, in one transaction. again_from: the offset that the position was set back to."""
        start = self._handled[topic.name] if again_from is None else again_from
        batch, self._handled[topic.name] = Batch("dead-letters"), len(self.logs[topic.name])
        for record in self.logs[topic.name][start:]:
            for processor in self.processors[topic.name]:
                assert processor.attempt(record, self._rows_of(processor, batch), batch) is None
        for (table, _), rows in batch.rows.items():
            for key, value in rows.encoded().items():
                self.stores[table].pop(key, None)
                if value is None:
                    self.deleted.append((table, key))
                else:
                    self.stores[table][key] = value
        for written in batch.records:
            self._append(written.topic, written.key or b"", written.value or b"")
        self.outcomes += [outcome for _, outcome in batch.outcomes]

    def row(self, table: Table, cart: str) -> Row[Any] | None:
        value = self.stores[table.name].get(0, cart.encode())
        return None if value is None else self.codecs[table.name].decode(value)

    def events(self, cart: str) -> list[Fact]:
        decoded = map(DECIDER.event_codec.decode, (each.value for each in self.logs[EVENTS.name]))
        return [event for event in decoded if event.aggregate_id == cart]

    def _append(self, topic: str, key: bytes, value: bytes) -> None:
        offset = len(self.logs[topic])
        self.logs[topic].append(MemoryRecord(topic, key, value, offset, timestamp=offset * HOUR_MS))

    def _rows_of(self, processor: Processor, batch: Batch) -> Rows:
        assert processor.table is not None
        rows = self._rows(processor.table, batch)
        rows.outcomes = self._rows(processor.outcomes, batch) if processor.outcomes else None
        rows.ended = self._rows(processor.history_index, batch) if processor.history_index else None
        return rows

    def _rows(self, table: Table, batch: Batch) -> Rows[Any]:
        store = cast(RowStore, self.stores[table.name])
        return batch.rows.setdefault(Place(table.name, 0), Rows(table.name, store, 0, None, self.codecs[table.name]))


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_an_aggregate_that_has_ended_has_no_row_and_begins_again_at_the_next_sequence(worker: Worker) -> None:
    worker.send("ann", ADD)
    assert worker.send("ann", OUT).sequence == 2
    assert worker.row(CARTS, "ann") is None
    assert worker.deleted == [(CARTS.name, b"ann")]
    assert worker.send("ann", ADD).sequence == 3
    assert worker.row(CARTS, "ann") == Row(3, Filled(items=("tea",)), {}, 2)
    assert [event.sequence for event in worker.events("ann")] == [1, 2, 3]


def test_one_that_begins_and_ends_in_one_batch_leaves_nothing_but_its_sequence(worker: Worker) -> None:
    for command in (ADD, OUT, ADD, OUT):
        worker.append("ann", command)
    worker.handle(COMMANDS)
    assert worker.row(CARTS, "ann") is None
    assert worker.send("ann", ADD).sequence == 5


def test_a_refusal_of_what_has_no_row_writes_none(worker: Worker) -> None:
    assert worker.send("ann", OUT).code == "cart.empty"
    worker.send("bob", ADD)
    worker.send("bob", OUT)
    assert worker.send("bob", OUT).code == "cart.empty"
    assert worker.stores[CARTS.name] == {}
    assert worker.deleted == [(CARTS.name, b"bob")]


def test_a_command_is_known_by_its_id_after_its_aggregate_has_ended(worker: Worker) -> None:
    worker.send("ann", ADD, id_="first")
    worker.send("ann", OUT)
    assert worker.send("ann", ADD, id_="first").sequence == 1
    assert len(worker.events("ann")) == 2


def test_expecting_nothing_is_right_once_nothing_is_left_and_wrong_once_it_has_begun_again(worker: Worker) -> None:
    worker.send("ann", ADD)
    assert worker.send("ann", ADD, expected=0).code == "sequence.mismatch"
    worker.send("ann", OUT)
    assert worker.send("ann", ADD, expected=1).code == "sequence.mismatch"
    assert worker.send("ann", ADD, expected=0).sequence == 3
    assert worker.send("ann", ADD, expected=0).code == "sequence.mismatch"


def test_expecting_the_sequence_of_the_end_is_right_too(worker: Worker) -> None:
    worker.send("ann", ADD)
    worker.send("ann", OUT)
    assert worker.send("ann", ADD, expected=2).sequence == 3


def test_commands_that_are_read_again_once_nobody_knows_them_have_no_second_effect(worker: Worker) -> None:
    for command in (ADD, OUT):
        worker.send("ann", command)
    assert TOPOLOGY.outcomes is not None
    worker.stores[TOPOLOGY.outcomes.name].clear()
    worker.handle(COMMANDS, again_from=0)
    assert len(worker.events("ann")) == 2


def test_a_row_that_knows_of_a_failed_command_stays_until_that_is_retried(worker: Worker) -> None:
    worker.send("ann", ADD)
    failed: Row[Cart] = Row(1, Filled(items=("tea",)), {"lost": (1, "", "command.failed", None)}, 0)
    worker.stores[CARTS.name][b"ann"] = DECIDER.row_codec.encode(failed)
    worker.send("ann", OUT)
    assert worker.row(CARTS, "ann") == Row(2, INITIAL, failed.outcomes, 1)
    assert worker.send("ann", ADD, expected=0).sequence == 3, "of which there is nothing any more"


def test_a_row_from_before_rows_ended_goes_with_its_next_command(worker: Worker) -> None:
    worker.stores[CARTS.name][b"ann"] = DECIDER.row_codec.encode(Row(6, INITIAL, {}, -1))
    assert worker.send("ann", OUT).code == "cart.empty"
    assert worker.row(CARTS, "ann") is None
    assert worker.send("ann", ADD).sequence == 7


def test_the_row_of_a_view_ends_and_begins_at_its_first_sequence(worker: Worker) -> None:
    for command in (ADD, ADD, OUT, ADD):
        worker.send("ann", command)
    worker.handle(EVENTS, again_from=0)
    assert worker.row(WAITING, "ann") == Row(1, Waiting(items=1), {}, 3)
    worker.send("ann", OUT)
    worker.handle(EVENTS)
    assert worker.row(WAITING, "ann") is None


def test_a_view_deletes_no_row_that_was_never_there(worker: Worker) -> None:
    for command in (ADD, OUT):
        worker.send("ann", command)
    worker.handle(EVENTS, again_from=1)
    assert worker.deleted == [(CARTS.name, b"ann")]


def test_an_event_that_was_parked_counts_though_rows_of_later_ones_have_ended(worker: Worker) -> None:
    for cart, command in (("eve", ADD), ("ann", ADD), ("ann", OUT)):
        worker.send(cart, command)
    view = next(each for each in worker.processors[EVENTS.name] if each.table == WAITING)
    late, *others = worker.logs[EVENTS.name]
    batch = Batch("dead-letters")
    rows, parking = (
        worker._rows(WAITING, batch),
        Parking(Rows("", cast(RowStore, Store()), 0, None, PARKED_CODEC), set()),
    )
    view.process(others, rows, batch, parking)
    assert parking.ended(WAITING.name, EVENTS.name) == others[-1].offset
    view.process([late], rows, batch, parking)
    assert rows.get(b"eve") is None
    assert view.attempt(late, rows, batch, retried_ms=0) is None
    assert rows.get(b"eve") == Row(1, Waiting(items=1), {}, late.offset)


def test_a_view_that_is_read_again_has_every_record_though_its_group_has_no_position(worker: Worker) -> None:
    """As after its source was made again, or has another name: then an operator is sent to `reprocess`."""
    worker.send("ann", ADD)
    (view,) = (each for each in worker.processors[EVENTS.name] if each.table == WAITING)
    batch = Batch("dead-letters")
    rows, noted = worker._rows(WAITING, batch), Rows("", cast(RowStore, Store()), 0, None, PARKED_CODEC)
    Parking(noted, set()).note_ended(WAITING.name, 0, EVENTS.name, 9)
    removed = list(_ended(TOPOLOGY, replay_of(TOPOLOGY, processors_of(SERVICE), WAITING.name)))
    assert [(record.partition, record.value) for record in removed] == [(0, None), (1, None)]
    noted.put(removed[0].key or b"", None)
    view.process(worker.logs[EVENTS.name], rows, batch, Parking(noted, set()))
    assert rows.get(b"ann") == Row(1, Waiting(items=1), {}, 0)


def test_what_has_ended_of_another_source_leaves_out_no_record_of_this_one(worker: Worker) -> None:
    worker.send("ann", ADD)
    (view,) = (each for each in worker.processors[EVENTS.name] if each.table == WAITING)
    batch = Batch("dead-letters")
    rows, parking = (
        worker._rows(WAITING, batch),
        Parking(Rows("", cast(RowStore, Store()), 0, None, PARKED_CODEC), set()),
    )
    parking.note_ended(WAITING.name, 0, "carts.events.v0", 9)
    view.process(worker.logs[EVENTS.name], rows, batch, parking)
    assert rows.get(b"ann") == Row(1, Waiting(items=1), {}, 0)


def test_a_retry_that_ends_a_row_leaves_out_no_other_record_that_is_retried() -> None:
    worker = Worker()
    for cart, command in (("eve", ADD), ("ann", ADD), ("ann", OUT)):
        worker.send(cart, command)
    view = next(each for each in worker.processors[EVENTS.name] if each.table == WAITING)
    late, began, ended = worker.logs[EVENTS.name]
    batch = Batch("dead-letters")
    rows = worker._rows(WAITING, batch)
    for record in (began, ended, late):
        assert view.attempt(record, rows, batch, retried_ms=0) is None
    assert (rows.get(b"ann"), rows.get(b"eve")) == (None, Row(1, Waiting(items=1), {}, late.offset))


def test_a_table_that_does_not_end_keeps_a_row_in_the_initial_state() -> None:
    kept = replace(TOPOLOGY, tables=(replace(CARTS, ends=False), WAITING, FRESH))
    worker = Worker(replace(SERVICE, topology=kept))
    for command in (ADD, OUT):
        worker.send("ann", command)
    assert worker.row(CARTS, "ann") == Row(2, INITIAL, {}, 1)


def test_an_aggregate_goes_on_also_where_rows_end_no_more(worker: Worker) -> None:
    """As in a rolling update, or after it was rolled back."""
    for command in (ADD, OUT):
        worker.send("ann", command)
    after = Worker(replace(SERVICE, topology=replace(TOPOLOGY, tables=(replace(CARTS, ends=False), WAITING, FRESH))))
    after.stores, after.logs = worker.stores, worker.logs
    after._handled |= worker._handled
    assert after.send("ann", ADD).sequence == 3


def test_rows_of_aggregates_can_not_end_without_a_history() -> None:
    with pytest.raises(
        ValueError, match=r"^carts: rows of carts end, and nothing .*; fix: give the Topology `history=`"
    ):
        Topology("carts", topics=(COMMANDS, EVENTS), tables=(CARTS,))


def test_brokers_compact_changelogs_whose_rows_end_before_they_are_a_gigabyte() -> None:
    specs = declared_topics([TOPOLOGY], Settings())
    tight = {name for name, spec in specs.items() if "segment.bytes" in spec.settings()}
    assert tight == {TOPOLOGY.changelog(table).name for table in (CARTS, WAITING, FRESH, TOPOLOGY.parked)}
    without_views = declared_topics([replace(TOPOLOGY, tables=(CARTS,))], Settings())
    assert "segment.bytes" not in without_views[TOPOLOGY.changelog(TOPOLOGY.parked).name].settings()
    assert {specs[name].settings()["delete.retention.ms"] for name in tight} == {"86400000"}
    short = Difference(min(tight), "delete.retention.ms", "86400000", "3600000")
    assert harm_of(short)[0] is Severity.URGENT
    loose = Difference(min(tight), "segment.bytes", "16777216", "1073741824")
    assert harm_of(loose) == (
        Severity.NOTICE,
        "rows that have ended stay in their changelog, and are restored, for longer",
    )


def told(events: Sequence[Fact]) -> Row[Any] | None:
    """The row of a view whose key has had these events."""
    view, count = None, 0
    for event in events:
        view = PROJECTIONS[0].project(view, event, event.aggregate_id)
        count = 0 if view is None else count + 1
    return None if view is None else Row(count, view, {}, 0)


def test_a_sentence_about_a_view_can_tell_of_its_end() -> None:
    cart = ViewScenario(PROJECTIONS, WAITING)
    cart("ann", happened(ItemAdded(item="tea"))).shows(Waiting(items=1))
    cart("ann", happened(ItemAdded(item="tea")), happened(CheckedOut())).shows(None)


SENT = st.lists(
    st.lists(st.tuples(st.sampled_from(["ann", "bob"]), st.sampled_from([ADD, OUT])), min_size=1, max_size=6),
    min_size=1,
    max_size=8,
)


def sent(worker: Worker, batches: Iterable[Iterable[tuple[str, AddItem | CheckOut]]]) -> None:
    for batch in batches:
        for cart, command in batch:
            worker.append(cart, command)
        worker.handle(COMMANDS)


@given(SENT)
def test_in_any_history_each_row_is_the_fold_and_sequences_have_no_gap(batches: list[list[Any]]) -> None:
    worker = Worker()
    sent(worker, batches)
    worker.handle(EVENTS)
    for cart in ("ann", "bob"):
        events = worker.events(cart)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        state, row = fold(DECIDER.evolve, [event.data for event in events], INITIAL), worker.row(CARTS, cart)
        assert (row and (row.sequence, row.state)) == (None if state == INITIAL else (len(events), state))
        viewed, expected = worker.row(WAITING, cart), told(events)
        assert (viewed and (viewed.sequence, viewed.state)) == (expected and (expected.sequence, expected.state))


@given(SENT)
def test_how_commands_are_batched_changes_nothing(batches: list[list[Any]]) -> None:
    one, other = Worker(), Worker()
    sent(one, batches)
    sent(other, [[each for batch in batches for each in batch]])
    for worker in (one, other):
        worker.handle(EVENTS)
    assert one.logs == other.logs
    assert one.stores == other.stores


@given(SENT, st.integers(0, 40))
def test_commands_that_are_read_again_from_anywhere_change_nothing(batches: list[list[Any]], start: int) -> None:
    worker = Worker()
    sent(worker, batches)
    stores = {name: {**rows} for name, rows in worker.stores.items() if rows}
    events = [*worker.logs[EVENTS.name]]
    worker.handle(COMMANDS, again_from=start)
    assert worker.logs[EVENTS.name] == events
    assert {name: rows for name, rows in worker.stores.items() if rows} == stores


@given(SENT)
def test_events_that_are_read_again_from_the_first_lead_to_the_same_rows(batches: list[list[Any]]) -> None:
    worker = Worker()
    sent(worker, batches)
    worker.handle(EVENTS)
    before = {**worker.stores[WAITING.name]}
    worker.handle(EVENTS, again_from=0)
    assert worker.stores[WAITING.name] == before
