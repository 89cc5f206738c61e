"""Records of a view's source that are in no row: parked by the engine, or dropped or skipped for an operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from pipelines.arrow import as_batches, rows_of
from pipelines.catalog import FoldedTable
from pipelines.sources import RECORDS, Batches, Flow
from shared.kafka.brokers import Brokers, Positions
from shared.kafka.spans import read_all
from shared.kafka.transactions import Record
from shared.parking.parked import (
    NO_CLOCK,
    PARKED_CODEC,
    Clock,
    OperatorRequest,
    Parked,
    is_note,
    is_noted_in,
    partition_of_id,
    processor_of_id,
)
from shared.parking.requests import operator_requests
from shared.topology.topics import Topology

Place = tuple[int, int]
"""Partition and offset."""


def parked_keys(brokers: Brokers, table: FoldedTable) -> list[Parked]:
    """The parked keys whose records are missing from `table`, and their pages. The engine parks under its name."""
    states = (parked_in(record) for record in parked_records(brokers, table.topology))
    place = (table.table.name, table.table.source.name)
    return [parked for parked in states if (parked.processor, parked.topic) == place]


def count_in(partition: int | None, parked: Iterable[Parked]) -> int:
    """How many keys are parked, in one partition or in all."""
    return sum(not each.is_page and (partition is None or each.partition == partition) for each in parked)


def parked_records(brokers: Brokers, topology: Topology) -> list[Record]:
    """The rows of all keys that are parked by now, as they are in the changelog.

    Without the notes of what this version has done: those of a new version tell of itself.
    """
    changelog = topology.changelog(topology.parked).name
    latest = {(number, key): row for number, key, row in read_all(brokers, changelog) if not is_note(key)}
    return [Record(changelog, key, row, number) for (number, key), row in latest.items() if row is not None]


def parked_in(record: Record) -> Parked:
    """The parked key in the row of `record`."""
    assert record.value is not None
    return PARKED_CODEC.decode(record.value).state


class Scope(NamedTuple):
    """Which records of its source a view includes: those from `starts` on, by partition, that were not dropped."""

    starts: Positions
    dropped: tuple[Place, ...]

    def is_within(self, other: Scope) -> bool:
        """Whether each record that `other` leaves out is left out here."""
        return self.starts == other.starts and set(self.dropped) >= set(other.dropped)


def notes(brokers: Brokers, topology: Topology) -> tuple[OperatorRequest, ...]:
    """What was done to the records that views count, in order; not what was only requested."""
    return tuple(request for request in operator_requests(brokers, topology) if request.is_note)


def scope_of(notes: Iterable[OperatorRequest], view: FoldedTable) -> Scope:
    """As the view was last computed: `reprocess` reads again what was dropped before, and may begin later."""
    starts: Positions = {}
    dropped: list[Place] = []
    for note in notes:
        if note.offset is None or processor_of_id(note.id) != view.table.name:
            continue
        if not is_noted_in(note.id, view.events.name):
            continue  # from before the view had this source
        partition = partition_of_id(note.id)
        if note.action == "reprocess":
            starts[partition] = note.offset
            dropped = [place for place in dropped if place[0] != partition]
        else:
            dropped.append((partition, note.offset))
    return Scope(starts, tuple(dropped))


def present_scope(brokers: Brokers, table: FoldedTable, parked: Iterable[Parked]) -> Scope:
    """Which events the rows of `table` include by now: without those that are `parked`."""
    if not table.is_view:
        return Scope({}, ())  # an aggregate leaves out commands, not events
    starts, dropped = scope_of(notes(brokers, table.topology), table)
    return Scope(starts, (*dropped, *((each.partition, offset) for each in parked for offset in each.offsets)))


def in_scope(records: Flow, scope: Scope, table: FoldedTable) -> Flow:
    """The `records` that are in `scope`, in the same order. Where rows of `table` expire, `timestamp` is the clock of
    the partition as of each record, and one that was dropped has neither key nor value: the clock goes by it, too.
    """
    if table.table.expires is not None:
        return records.then(partial(_clocked, scope), RECORDS)
    return records.then(partial(_in_scope, scope), RECORDS) if scope.starts or scope.dropped else records


def _in_scope(scope: Scope, batches: Batches) -> Iterator[pa.RecordBatch]:
    dropped = set(scope.dropped)
    for batch in batches:
        places = zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
        kept = [place[1] >= scope.starts.get(place[0], 0) and place not in dropped for place in places]
        yield batch.filter(pa.array(kept, pa.bool_()))


def _clocked(scope: Scope, batches: Batches) -> Iterator[pa.RecordBatch]:
    dropped, clocks = set(scope.dropped), dict[int, Clock]()

    def told() -> Iterator[tuple[Any, ...]]:
        for number, offset, _, key, value in rows_of(batches):
            if offset >= scope.starts.get(number, 0):
                clock = clocks.get(number, NO_CLOCK).after(offset, value)
                clocks[number] = clock
                yield (number, offset, clock.at, *((None, None) if (number, offset) in dropped else (key, value)))

    return as_batches(told(), RECORDS)
