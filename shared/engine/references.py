"""Small views of which each partition has all rows, and the rows that show one: found by an index, some at a time.

The record of a reference is done when all rows show it. Until then the source's position stays before it, and each
batch takes some more of them: no transaction grows with their number, and a position says what rows show. After a crash
it is handled again, and passes over the rows that show it already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from shared.engine.batch import WORKER_FAILURES, Batch, Refusal
from shared.engine.guards import LARGE_ROW_BYTES
from shared.engine.processors import Joins, ProjectionProcessor, referred
from shared.parking.parking import Parking
from shared.runtime.logs import trace_of
from shared.tables import indexing
from shared.tables.rows import Rows
from shared.topology.join import Join
from shared.topology.projection import Projection
from shared.topology.records import SourceRecord
from shared.topology.topics import Table

log = structlog.get_logger(__name__)

AT_ONCE = 1_000  # entries of an index, in one turn


class _Shown(NamedTuple):
    """Rows of `join` that show one of the reference: `number` of those that they refer to, by `field`."""

    join: Join[Any]
    parts: Sequence[Projection[Any, Any]]
    number: int
    field: str


class ReferenceProcessor(ProjectionProcessor):
    """A view that others refer to. Its rows are written first, with some of those that show them."""

    def __init__(self, projection: Projection[Any, Any], joins: Joins) -> None:
        super().__init__(projection, joins)
        self._shown = [
            _Shown(join, parts, number, field)
            for join, parts in self._joins.items()
            for number, (field, table) in enumerate(join.table.refers)
            if table == projection.table
        ]
        self._joins = {}  # none has a row of the same key
        # by a record's partition and offset: which of _shown, and the last entry of its index
        self._reached: dict[tuple[int, int], tuple[int, bytes]] = {}
        self._is_wary = False

    def restart(self) -> None:
        self._reached.clear()

    def process(self, records: Sequence[SourceRecord], rows: Rows | None, batch: Batch, parking: Parking) -> None:
        self.is_spreading = False
        super().process(records, rows, batch, parking)

    def refusal(self, record: SourceRecord, batch: Batch) -> Refusal | None:
        """At first, rows that are large stay as they are, instead of the record."""
        refusal = super().refusal(record, batch)
        self._is_wary = refusal is not None
        return None if refusal is None or refusal.times == 1 else refusal

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        self.is_spreading = False
        super().handle(record, rows, batch)
        assert rows is not None
        assert record.key is not None
        self.is_spreading = not self._spread(record.key, record.offset, rows)

    def _spread(self, key: bytes, offset: int, rows: Rows) -> bool:
        """Have some more rows show the row of `key`. Returns whether all do."""
        beside: Mapping[Table, Rows] = {**rows.beside, self.projection.table: rows}
        at = rows.partition, offset
        begun, last = self._reached.get(at, (0, b""))
        if at not in self._reached:
            for shown in self._shown:
                for showing, _ in list(beside[shown.join.table.joins[0]].unstored()):
                    self._show(shown, key, showing, beside)
        left = AT_ONCE
        for index, shown in list(enumerate(self._shown))[begun:]:
            for entry in _entries(beside[shown.join.table.joins[0]], shown.field, key, last):
                if not left:
                    self._reached[at] = index, last
                    return False
                left, last = left - 1, entry
                self._show(shown, key, indexing.key_of(entry), beside)
            last = b""
        self._reached.pop(at, None)
        return True

    def _show(self, shown: _Shown, key: bytes, showing: bytes, beside: Mapping[Table, Rows]) -> None:
        """Make the row `showing` again, if it refers to `key` and is made of another row of it."""
        join, parts = shown.join, shown.parts
        try:
            made_of = [beside[each.table].get(showing) or each.initial_row for each in parts[: len(join.table.joins)]]
            if join.keys_of(made_of[0].state)[shown.number] != key:
                return
            made_of += referred(join, parts, made_of[0], beside)
            joined = beside[join.table]
            kept = joined.get(showing)
            if kept is not None and kept.made_of == join.made_of(made_of):
                return
            row = join.row(made_of, showing.decode())
            if row is not None and self._is_wary and len(joined.codec.encode_checked([row])[0]) >= LARGE_ROW_BYTES:
                raise ValueError("it would be too large")
            joined.put(showing, row)
        except WORKER_FAILURES:
            raise
        except Exception as bug:  # a row that can't be read, or a bug of a join: no record of it is there to be parked
            told = {"table": join.table.name, "key": showing.decode(errors="replace")}
            log.error("a row stays as it was, though what it refers to has changed", exception=trace_of(bug), **told)


def _entries(rows: Rows, field: str, key: bytes, last: bytes) -> Iterator[bytes]:
    """Those in the store's index of the rows whose `field` is `key`, behind `last`."""
    begin = indexing.entry(field, key.decode(), b"")
    for entry in rows.store.keys_by(rows.partition, field, last or begin):
        if not entry.startswith(begin):
            return
        yield entry
