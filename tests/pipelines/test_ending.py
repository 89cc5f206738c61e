"""Rows that end, in Spark: the fold of any history has the rows that workers have, and the checks know of the end.

The fold by itself, on Arrow batches as Spark hands them over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from pydantic_core import from_json, to_json

from pipelines import answers
from pipelines.arrow import schema_of
from pipelines.backfill import BadMapping, _refuse_ending
from pipelines.catalog import FoldedTable, Version, table_in
from pipelines.consistency import check, difference
from pipelines.divergence import Record, _locate
from pipelines.folds import STATES, Folded, advance_of, fold_batches
from pipelines.rebuild import _ROWS, Rebuild, _ended, _of_aggregate, _of_view, _taking_over
from shared.dev.stack import Stack
from shared.dev.worker import faust_command
from shared.domain import Decider, State
from shared.domain.history_index import ended_key, goes_on_from, index_codec
from shared.domain.row import Row
from shared.engine.batch import Batch
from shared.engine.processors import ProjectionProcessor
from shared.kafka import murmur2
from shared.kafka.brokers import Brokers
from shared.kafka.spans import read_all
from shared.operations.provision import provision
from shared.parking.parked import PARKED_CODEC, clock_id, clock_in
from shared.topology.projection import Projection
from shared.topology.topics import HOUR_MS, Topology
from tests.carts.domain import DECIDER, INITIAL, Cart, Filled, ItemAdded
from tests.carts.projections import Waiting
from tests.carts.topology import CARTS, COMMANDS, EVENTS, FRESH, TOPOLOGY, WAITING
from tests.conftest import WORKER_SETTINGS
from tests.pipelines.conftest import next_version
from tests.unit.test_ending import ADD, OUT, SENT, Worker, sent
from tests.waiting import eventually

PACKAGE = "tests.carts"
ALONE = "tom"  # in its partition
AGGREGATE, VIEW, EXPIRES = (table_in(PACKAGE, table.name) for table in (CARTS, WAITING, FRESH))


def worked(*carts: tuple[str, Any]) -> Worker:
    worker = Worker()
    sent(worker, [[each] for each in carts])
    worker.handle(EVENTS)
    return worker


def folded(worker: Worker, table: FoldedTable, since: int | None = None) -> dict[str, dict[str, Any]]:
    log = worker.logs[EVENTS.name]
    if not log:
        return {}
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([0] * len(log), pa.int32()),
            "offset": [record.offset for record in log],
            "key": [record.key for record in log],
            "value": [record.value for record in log],
        }
    )
    given = {} if since is None else {0: since}
    rows = [row for out in fold_batches(PACKAGE, table.table.name, None, given, [batch]) for row in out.to_pylist()]
    return {row["key"].decode(): row for row in rows}


def rebuilt(worker: Worker, table: FoldedTable) -> dict[str, dict[str, Any]]:
    """The rows that `rebuild` stages, by key."""
    found = folded(worker, table)
    if table.is_view:
        states = [pa.RecordBatch.from_pylist([row], schema_of(STATES)) for row in found.values()]
        return {row["key"].decode(): row for out in _of_view(PACKAGE, WAITING.name, states) for row in out.to_pylist()}
    both = [
        {
            "partition": 0,
            "key": key.encode(),
            "row": worker.stores[CARTS.name].get(0, key.encode()),
            "sequence": row["sequence"],
            "state": row["state"],
            "problem": row["problem"],
        }
        for key, row in found.items()
    ]
    batches = [pa.RecordBatch.from_pylist([each]) for each in both]
    position = len(worker.logs[COMMANDS.name])
    rows = _of_aggregate(PACKAGE, CARTS.name, {0: position}, batches)
    return {row["key"].decode(): row for out in rows for row in out.to_pylist()}


def versions(worker: Worker, table: FoldedTable, cart: str, since: int | None = None) -> list[Version]:
    row = folded(worker, table, since)[cart]
    return table.versions(row["sequence"], [row["state"], *row["later"]])


@given(SENT)
def test_a_rebuild_has_the_rows_of_the_workers(batches: list[list[Any]]) -> None:
    worker = Worker()
    sent(worker, batches)
    worker.handle(EVENTS)
    views = {key: VIEW.row_codec.decode(row["value"]) for key, row in rebuilt(worker, VIEW).items()}
    live = {key.decode(): VIEW.row_codec.decode(row) for key, row in worker.stores[WAITING.name].items()}
    assert views == live
    aggregates = rebuilt(worker, AGGREGATE)
    assert [row["problem"] for row in aggregates.values() if row["problem"]] == []
    kept = {key: row["value"] for key, row in aggregates.items() if row["value"] is not None}
    assert kept == {key.decode(): row for key, row in worker.stores[CARTS.name].items()}


@given(SENT)
def test_a_rebuild_tells_where_each_aggregate_goes_on(batches: list[list[Any]]) -> None:
    worker = Worker()
    sent(worker, batches)
    staged = [row for row in rebuilt(worker, AGGREGATE).values() if row["value"] is None]
    decode = index_codec(Cart).decode
    for row, entry in zip(staged, _told(worker, staged), strict=True):
        cart = row["key"].decode()
        assert entry["key"] == ended_key(cart)
        on = goes_on_from(DECIDER.initial_row, decode(entry["value"]))
        assert (on.sequence, on.state) == (len(worker.events(cart)), INITIAL)
        assert on.offset == len(worker.logs[COMMANDS.name]) - 1
        assert worker.row(CARTS, cart) is None


def test_a_letter_that_is_retried_after_a_rebuild_has_no_second_effect_on_what_has_ended() -> None:
    """Its sender has sent it again meanwhile. Its outcome is known no more, and the letter comes along."""
    worker = Worker()
    worker.append("ann", ADD, id_="x")  # is parked
    worker._handled[COMMANDS.name] = 1
    worker.send("ann", ADD, id_="x")
    worker.send("ann", OUT)
    (told,) = _told(worker, rebuilt(worker, AGGREGATE).values())
    assert TOPOLOGY.outcomes is not None
    assert TOPOLOGY.history_index is not None
    worker.stores[TOPOLOGY.outcomes.name].clear()
    worker.stores[TOPOLOGY.history_index.name][told["key"]] = told["value"]
    (aggregate,) = worker.processors[COMMANDS.name]
    batch = Batch("dead-letters")
    letter = worker.logs[COMMANDS.name][0]
    failure = aggregate.attempt(letter, worker._rows_of(aggregate, batch), batch, retried_ms=100 * HOUR_MS)
    assert (failure and failure.code, batch.records) == ("command.overtaken", [])


def _told(worker: Worker, staged: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    batches = [pa.RecordBatch.from_pylist([row], schema_of(_ROWS)) for row in staged]
    position = len(worker.logs[COMMANDS.name])
    return [row for out in _ended(PACKAGE, CARTS.name, {0: position}, batches) for row in out.to_pylist()]


@pytest.mark.parametrize("table", [AGGREGATE, VIEW], ids=["aggregate", "view"])
@given(SENT)
def test_the_consistency_check_finds_live_rows_right_whatever_came_since(
    table: FoldedTable, batches: list[list[Any]]
) -> None:
    worker = Worker()
    half = len(batches) // 2
    sent(worker, batches[:half])
    worker.handle(EVENTS)
    rows, since = {**worker.stores[table.table.name]}, len(worker.logs[EVENTS.name])
    sent(worker, batches[half:])
    worker.handle(EVENTS)
    later = {**worker.stores[table.table.name]}
    for cart in folded(worker, table):
        found = versions(worker, table, cart, since)
        for row in (dict(rows).get(cart.encode()), dict(later).get(cart.encode())):
            assert difference(table.row_codec, row, found) is None


def test_a_row_that_should_have_ended_is_found_and_one_that_should_not() -> None:
    worker = worked(("ann", ADD), ("ann", OUT), ("bob", ADD))
    row = VIEW.row_codec.encode(Row(1, Waiting(items=1), {}, 0))
    why = "its row is at sequence 1, its events end at 0"
    assert difference(VIEW.row_codec, row, versions(worker, VIEW, "ann")) == why
    assert difference(VIEW.row_codec, None, versions(worker, VIEW, "bob")) == "no row, but 1 events"
    ended: Row[Cart] = Row(2, INITIAL, {}, 0)
    assert (
        difference(AGGREGATE.row_codec, AGGREGATE.row_codec.encode(ended), versions(worker, AGGREGATE, "ann")) is None
    )
    stale: Row[Cart] = Row(1, Filled(items=("tea",)), {}, 0)
    why = "its row stopped at sequence 1, its events had gone on to 2"
    assert difference(AGGREGATE.row_codec, AGGREGATE.row_codec.encode(stale), versions(worker, AGGREGATE, "ann")) == why


class Owed(State):
    amount: Decimal = Decimal(0)
    of: tuple[str, ...] = ()


@pytest.mark.parametrize(
    "end",
    [Owed(amount=Decimal("1.50") - Decimal("1.50")), Owed().model_copy(update={"of": []})],
    ids=["equal, but written in another way", "written alike, but not equal"],
)
def test_a_row_ends_alike_in_workers_and_in_spark_if_it_would_be_read_as_the_initial_one(end: Owed) -> None:
    def owed(view: Owed, *_: object) -> Owed:
        return end if view.amount else Owed(amount=view.amount + Decimal("1.5"))

    worker = worked(("ann", ADD), ("ann", ADD), ("ann", ADD))
    *until, last = worker.logs[EVENTS.name]
    worker.stores[WAITING.name].clear()
    projection = Projection(WAITING, owed, initial=Owed(), events=(ItemAdded,), state=Owed)
    carts: Decider[Any, Any, Any] = DECIDER
    decider = replace(carts, initial=Owed(), state=Owed, evolve=owed)
    processor, batch = ProjectionProcessor(projection), Batch("")
    rows = worker._rows(WAITING, batch)
    view, aggregate = replace(VIEW, pure=projection), replace(AGGREGATE, pure=decider)
    viewed = decided = Folded(0, Owed(), -1)
    for record in until:
        assert processor.attempt(record, rows, batch) is None
        viewed = advance_of(view)(viewed, record.offset, b"ann", record.value)
        decided = advance_of(aggregate)(decided, record.offset, b"ann", record.value)
    assert rows.get(b"ann") is None
    assert difference(projection.row_codec, None, view.versions(viewed.sequence, [to_json(viewed.state)])) is None
    assert viewed.sequence == 0
    assert _taking_over(aggregate, 2, b"ann", None, 2, to_json(decided.state), None) == (b"ann", None, 2, None)
    assert processor.attempt(last, rows, batch) is None
    again = rows.get(b"ann")
    for begun in (
        advance_of(view)(viewed, last.offset, b"ann", last.value),
        advance_of(aggregate)(decided, last.offset, b"ann", last.value),
    ):
        assert to_json(begun.state) == to_json(again and again.state)


def test_a_backfill_of_a_table_that_ends_is_refused() -> None:
    with pytest.raises(BadMapping, match=r"^rows of carts end, .*; fix: leave out its `ends` in topology.py until"):
        _refuse_ending(AGGREGATE)


def test_http_answers_nothing_of_a_row_that_has_ended() -> None:
    worker = worked(("ann", ADD), ("ann", OUT), ("bob", ADD))
    initial = to_json(INITIAL)
    assert answers.difference(b"", versions(worker, AGGREGATE, "ann"), initial) is None
    assert answers.difference(b"", versions(worker, AGGREGATE, "bob"), initial) is not None


def test_a_deleted_row_is_where_they_part_only_if_no_event_ended_it() -> None:
    worker = worked(("ann", ADD), ("ann", OUT), ("ann", ADD), ("bob", ADD))
    wrong = VIEW.row_codec.encode(Row(1, Waiting(items=7), {}, 2))
    rows = [Record(0, 0, VIEW.row_codec.encode(Row(1, Waiting(items=1), {}, 0))), Record(0, 1, None)]

    def parted(cart: str, *versions: Record) -> str:
        events = [Record(0, each.offset, each.value) for each in worker.logs[EVENTS.name] if each.key == cart.encode()]
        return _locate(VIEW, cart.encode(), "why", events, versions).at

    assert parted("ann", *rows, Record(0, 2, wrong)).startswith("after event 3, cart.item_added")
    assert parted("bob", *rows).startswith("after the last event there is: 1, cart.item_added")
    assert from_json(wrong)["state"] == {"items": 7}


@pytest.fixture
def carts(tmp_path: Path) -> Iterator[Stack]:
    """One worker, after whose stop `rebuild` may run."""
    command = partial(faust_command, package="tests")
    with Stack(tmp_path, {"carts": 1}, settings=WORKER_SETTINGS, topologies=[TOPOLOGY], command=command) as stack:
        yield stack


@pytest.mark.long  # in short, the same folds without brokers, above
def test_spark_and_workers_agree_and_a_next_version_has_the_same_rows(spark: Any, carts: Stack, tmp_path: Path) -> None:
    (worker,) = carts.workers
    brokers, settings = Brokers(carts.bootstrap), carts.settings
    with httpx.Client(base_url=worker.url, timeout=60) as http:
        for cart in ("ann", "bob", "eve", ALONE):
            http.post(f"/carts/{cart}/items", json={"item": "tea"}).raise_for_status()
        http.post("/carts/icy/items", json={"item": "ice"}).raise_for_status()
        eventually(lambda: http.get("/fresh/icy").is_success)
        late = next(f"late-{number}" for number in range(64) if partition_of(f"late-{number}") == partition_of("icy"))

        def has_melted() -> bool:
            http.post(f"/carts/{late}/items", json={"item": "tea"}).raise_for_status()
            return http.get("/fresh/icy").status_code == 404

        eventually(has_melted)
        for cart in ("ann", "bob", ALONE, "icy", late):
            http.post(f"/carts/{cart}/check-out").raise_for_status()
        http.post("/carts/bob/items", json={"item": "jam"}).raise_for_status()
        eventually(lambda: brokers.positions(TOPOLOGY.group).get(EVENTS.name) == brokers.settled_ends(EVENTS.name))
    for table, agree in ((AGGREGATE, 6), (VIEW, 2), (EXPIRES, 6)):
        verdict = check(spark, brokers, table, url=worker.url)
        assert (verdict.differ, verdict.agree) == (0, agree), str(verdict)
    worker.stop()
    build = Rebuild(spark, brokers, [AGGREGATE, VIEW, EXPIRES], 2, tmp_path / "work")
    provision([build.topology], settings)
    assert build.run(lambda *_: None) == 9
    kept = {"ann", "bob", "eve", ALONE, late}
    for table, keys in ((AGGREGATE, {"bob", "eve"}), (VIEW, {"bob", "eve"}), (EXPIRES, kept)):
        old, new = (_latest(brokers, each.changelog(table.table).name) for each in (TOPOLOGY, build.topology))
        assert new == old
        assert old.keys() == {key.encode() for key in keys}
    assert _clocks(brokers, build.topology) == _clocks(brokers, TOPOLOGY)
    assert build.topology.history_index is not None
    assert _latest(brokers, build.topology.changelog(build.topology.history_index).name).keys() == {
        *map(ended_key, ("ann", ALONE, "icy", late)),
    }
    worker.command = next_version("carts")
    worker.start()
    with httpx.Client(base_url=worker.url, timeout=60) as http:
        http.post(f"/carts/{ALONE}/items", json={"item": "tea"}).raise_for_status()
        assert eventually(lambda: http.get(f"/carts/{ALONE}"), lambda found: found.is_success).json()["sequence"] == 3


def partition_of(cart: str) -> int:
    return murmur2.partition_of(cart.encode(), TOPOLOGY.partitions)


def _clocks(brokers: Brokers, topology: Topology) -> dict[int, datetime]:
    """By partition."""
    rows = read_all(brokers, topology.changelog(topology.parked).name)
    notes = [PARKED_CODEC.decode(row).state for _, key, row in rows if row and key == clock_id(FRESH.name).encode()]
    return {note.partition: clock_in(note, EVENTS.name).at for note in notes}


def _latest(brokers: Brokers, changelog: str) -> dict[bytes | None, bytes]:
    last = {key: row for _, key, row in read_all(brokers, changelog)}
    return {key: row for key, row in last.items() if row is not None}
