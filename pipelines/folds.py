"""A service's own pure parts over records, in Spark's Python workers.

Records come in Arrow batches, partition by partition in the order of their offsets, which is the order the engine
saw them in. Only names travel to the workers: each imports the service and folds with what it finds there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby, islice, repeat
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pydantic_core import to_json

from pipelines.arrow import as_batches, by_partition
from pipelines.catalog import FoldedTable, table_in
from pipelines.sources import Flow
from shared.domain.decider import Decider
from shared.domain.errors import BadMessage, UnknownType
from shared.kafka.murmur2 import check_home
from shared.topology.projection import Projection

STATES = "partition int, key binary, sequence long, offset long, state binary, later array<binary>, problem string"
"""One row per key.

sequence  of the row after the last event below `since`, 0 when the key appeared later, and of a view that has ended
offset    of the record that this event is
state     after it, as JSON in the form of a table's row
later     the states after each event from `since` on; of a row that has expired, the initial one
problem   why the fold stopped before the last event below `since`, null when it did not
"""

_NO_KEY = b""


class Folded(NamedTuple):
    """A key's row after the record at `offset`. Of a view that has ended, the sequence is 0, and the next row's 1."""

    sequence: int
    state: Any
    offset: int


_Record = tuple[int, bytes, bytes, datetime | None]
"""offset, key, value, clock"""


class Advance(Protocol):
    def __call__(self, before: Folded, offset: int, key: bytes, value: bytes, clock: datetime | None = None) -> Folded:
        """After the record. clock: of a view whose rows expire, as of this record. Raises when it cannot follow."""


class SequenceBroken(Exception):
    """An event is missing, or is there twice."""


def states(records: Flow, table: FoldedTable, since: Mapping[int, int] | None = None) -> Flow:
    """Every key's fold, one row each: STATES.

    since: the offset by partition from which on every single state is given, too.
    """
    fold = partial(fold_batches, table.package, table.table.name, checked_partitions(table), dict(since or {}))
    return records.then(fold, STATES)


def checked_partitions(table: FoldedTable) -> int | None:
    """Their number if the engine checks that a row's key belongs where its events are."""
    return table.topology.partitions if table.is_view and table.table.keyed_by_id else None


def fold_batches(
    package: str, table: str, partitions: int | None, since: Mapping[int, int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The same for the batches of one Spark partition; a Kafka partition is whole within it. partitions: see
    `checked_partitions`."""
    for _, rows in folded(table_in(package, table), partitions, since, batches):
        yield from as_batches(rows, STATES)


def folded(
    table: FoldedTable, partitions: int | None, since: Mapping[int, int], batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[int, Iterator[tuple[Any, ...]]]]:
    """Each Kafka partition as soon as its first record is there, and its STATES, which take the others."""
    clocked = table.table.expires is not None
    for number, runs in groupby(_of_one_partition(batches, clocked=clocked), key=lambda run: run.partition):
        yield number, _folded(_PartitionFold(table, number, partitions, since.get(number)), runs)


def _folded(fold: _PartitionFold, runs: Iterable[_Run]) -> Iterator[tuple[Any, ...]]:
    for run in runs:
        fold.feed(run.offsets, run.keys, run.values, run.clocks)
    yield from fold.rows()


class _PartitionFold:
    """The states of one Kafka partition, as its records arrive."""

    def __init__(self, table: FoldedTable, number: int, partitions: int | None, since: int | None) -> None:
        self._number = number
        self._partitions = partitions
        self._advance = advance_of(table)
        self._has_expired = table.pure.has_expired if isinstance(table.pure, Projection) else None
        self._clock: datetime | None = None  # None where no row expires
        self._initial = Folded(0, table.initial, -1)
        self._since = since
        self._last_offset = -1
        self._now: dict[bytes, Folded] = {}
        self._settled: dict[bytes, Folded] = {}  # of the keys that have later states
        self._later: dict[bytes, list[bytes]] = {}
        self._problems: dict[bytes, tuple[int, str]] = {}  # at which offset, and what

    def feed(
        self, offsets: Sequence[int], keys: Sequence[bytes], values: Sequence[bytes], clocks: Sequence[datetime]
    ) -> None:
        """More records, in the order of their offsets. clocks: of each, where rows expire."""
        if offsets[0] <= self._last_offset:
            raise AssertionError(f"offset {offsets[0]} comes after {self._last_offset}: records are not sorted")
        self._last_offset = offsets[-1]
        settled = len(offsets) if self._since is None else bisect_left(offsets, self._since)
        self._clock = clocks[-1] if clocks else None
        records = zip(offsets, keys, values, clocks or repeat(None), strict=bool(clocks))
        self._take(islice(records, settled))
        for record in records:
            self._take_later(record)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """One row per key, in the order of STATES."""
        problems = {
            key: f"at offset {offset}: {problem}"
            for key, (offset, problem) in self._problems.items()
            if self._since is None or offset < self._since
        }
        for key, last in self._now.items():
            settled = self._settled.get(key, last)
            later, problem = self._later.get(key, []), problems.pop(key, None)
            if last.sequence and self._expired(last.state, self._clock):
                later = [*later, to_json(self._initial.state)]
            yield self._number, key, settled.sequence, settled.offset, to_json(settled.state), later, problem
        for key, problem in problems.items():
            yield self._number, key, 0, -1, to_json(self._initial.state), [], problem

    def _take(self, records: Iterable[_Record]) -> None:
        now, advance, initial, problems = self._now, self._advance, self._initial, self._problems
        for offset, key, value, clock in records:
            if key in problems or (clock and value is None):  # dropped: only the clock went by it
                continue
            try:
                before = now.get(key, initial)
                after = advance(before, offset, key, value, clock)
                if after is not before:
                    if key not in now and self._partitions is not None:
                        check_home(key, self._number, self._partitions)
                    now[key] = after
            except Exception as error:  # whatever it is, it concerns this key, and the others go on
                problems.setdefault(key or _NO_KEY, (offset, _described(error)))

    def _take_later(self, record: _Record) -> None:
        key = record[1]
        before = self._now.get(key, self._initial)
        self._take([record])
        if (after := self._now.get(key, before)) is not before:
            self._settled.setdefault(key, before)
            later = self._later.setdefault(key, [])
            if before.sequence and self._expired(before.state, record[3]):
                later.append(to_json(self._initial.state))
            later.append(to_json(after.state))

    def _expired(self, state: Any, clock: datetime | None) -> bool:
        return clock is not None and self._has_expired is not None and self._has_expired(state, clock)


def advance_of(table: FoldedTable) -> Advance:
    """How to fold one more record, as the engine does."""
    match table.pure:
        case Decider() as decider:
            return _advance_aggregate(decider, table.table.ends)
        case Projection() as projection:
            return _advance_view(projection)


def _advance_aggregate(decider: Decider[Any, Any, Any], ends: bool) -> Advance:
    decode, evolve, initial = decider.event_codec.decode, decider.evolve, decider.initial
    is_like = decider.row_codec.is_like

    def advance(before: Folded, offset: int, key: bytes, value: bytes, clock: datetime | None = None) -> Folded:
        event = decode(value)
        sequence = before.sequence + 1
        if event.sequence != sequence:
            raise SequenceBroken(f"sequence {event.sequence} follows {before.sequence}")
        if event.aggregate_id.encode() != key:
            raise BadMessage("the record's key is not the aggregate id in its body")
        state = initial if ends and is_like(before.state, initial) else before.state  # it had no row any more
        return Folded(sequence, evolve(state, event.data), offset)

    return advance


def _advance_view(projection: Projection[Any, Any]) -> Advance:
    decode, project = projection.event_codec.decode, projection.project
    ends, initial, is_like = projection.table.ends, projection.initial, projection.row_codec.is_like

    def advance(before: Folded, offset: int, key: bytes, value: bytes, clock: datetime | None = None) -> Folded:
        try:
            event = decode(value)
        except UnknownType:
            return before
        now, sequence = clock or event.occurred_at, before.sequence
        if sequence and projection.has_expired(before.state, now):
            sequence = 0
        view = project(before.state if sequence else initial, event, key.decode())
        if projection.has_expired(view, now):
            view = initial
        return Folded(0 if ends and is_like(view, initial) else sequence + 1, view, offset)

    return advance


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, SequenceBroken) else f"{type(error).__name__}: {error}"


class _Run(NamedTuple):
    partition: int
    offsets: list[int]
    keys: list[bytes]
    values: list[bytes]
    clocks: list[datetime]


def _of_one_partition(batches: Iterable[pa.RecordBatch], *, clocked: bool) -> Iterator[_Run]:
    """Each batch, cut where the Kafka partition changes. clocked: with the clock as of each record, see `in_scope`."""
    for partition, run in by_partition(batches):
        offsets, keys, values = (run.column(name).to_pylist() for name in ("offset", "key", "value"))
        yield _Run(partition, offsets, keys, values, run.column("timestamp").to_pylist() if clocked else [])
