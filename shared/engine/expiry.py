"""Rows that end by the time of the events in their partition.

What a row has come to is decided record by record, by the clock as of that record: a row that has expired counts as
none. To delete it is another matter, and may come some commits later, so no transaction grows with their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import structlog

from shared.domain.envelope import EventEnvelope
from shared.engine.batch import WORKER_FAILURES, Batch
from shared.engine.processors import Processor, ProjectionProcessor
from shared.parking.parked import NO_CLOCK
from shared.parking.parking import Parking
from shared.runtime.logs import trace_of
from shared.runtime.positions import Place
from shared.tables import indexing
from shared.tables.rows import Rows
from shared.topology.records import SourceRecord

log = structlog.get_logger(__name__)

AT_ONCE = 1_000  # entries of the index of a partition, in one turn: more than records that a turn handles


class ExpiringProcessor(ProjectionProcessor):
    """A view whose rows expire. Its clock goes by all records of the source, also by those that are parked."""

    _clock: datetime | None = None  # as of the record in hand; None: by that record alone

    def process(self, records: Sequence[SourceRecord], rows: Rows | None, batch: Batch, parking: Parking) -> None:
        """Records that are read again are in the rows, or in none any more, or parked."""
        clock = parking.clock(self.name, self.source.name)
        for record in [each for each in records if each.offset > clock.offset]:
            clock = clock.after(record.offset, record.value)
            self._clock = clock.at
            Processor.process(self, [record], rows, batch, parking)
            if parking.holds(self.name, record):
                parking.note_clock(self.name, record.partition, record.topic, clock, parked=record.offset)
        self._clock = None
        parking.note_clock(self.name, records[0].partition, self.source.name, clock)

    def recall(self, record: SourceRecord, parking: Parking) -> None:
        clock = parking.clock(self.name, self.source.name, parked=record.offset)
        self._clock = None if clock == NO_CLOCK else clock.at

    def note(self, partition: int, parking: Parking) -> None:
        self._clock = None

    def _has_expired(self, view: Any, event: EventEnvelope[Any]) -> bool:
        return self.projection.has_expired(view, self._clock or event.occurred_at)

    def end(self, key: bytes, rows: Rows, clock: datetime) -> bool:
        """Delete the row if it has expired, with what is joined of it. Returns whether it has."""
        try:
            row = rows.get(key)
            if row is None or not self.projection.has_expired(row.state, clock):
                return False
            self._put(rows, key, None)
        except WORKER_FAILURES:
            raise
        except Exception as bug:  # a row that can't be read, or a bug of a join: no record is there to be parked
            told = {"table": self.name, "key": key.decode(errors="replace")}
            log.error("a row that has expired stays", exception=trace_of(bug), **told)
            return False
        return True


class _Held(NamedTuple):
    """Stands for any later record of a key."""

    topic: str
    partition: int
    key: bytes
    offset: int = 2**62
    value: bytes | None = None
    timestamp: int = 0


class Expiry:
    """Which rows have expired, found by the index of when they do.

    It does not look again where it has deleted all: a store is slow to pass over what was deleted.
    """

    def __init__(self) -> None:
        self._begins: dict[Place, bytes] = {}  # before there, the store has no row that has expired
        self._reached: dict[Place, bytes] = {}  # nor before there, until the next commit

    def restart(self) -> None:
        """It is not known any more of what was deleted whether it is, or whether all that is stored expires later."""
        self._begins.clear()
        self._reached.clear()

    def committed(self) -> None:
        self._reached.clear()

    def end_some(self, view: ExpiringProcessor, rows: Rows, parking: Parking) -> bool:
        """Delete some rows that have expired. Returns whether there were any."""
        place, field, source = Place(rows.changelog, rows.partition), view.projection.table.expires, view.source.name
        assert field is not None
        clock = parking.clock(view.name, source).at
        if clock == NO_CLOCK.at:
            return False
        start = self._reached.get(place) or self._begins.get(place) or _entry(field, "")
        ended = 0
        for number, entry in enumerate(rows.store.keys_by(rows.partition, field, start)):
            if entry > _entry(field, _second(clock)) + b"\xff":
                break
            if number == AT_ONCE:
                return ended > 0
            self._reached[place] = entry
            key = indexing.key_of(entry)
            if not parking.holds(view.name, _Held(source, rows.partition, key)):  # else what is parked comes first
                ended += view.end(key, rows, clock)
        # what is not in the store yet expires later than this, unless it was parked
        self._begins[place] = _entry(field, _second(parking.committed_clock(view.name, source).at))
        return ended > 0


def _entry(field: str, text: str) -> bytes:
    """Sorts before all entries with a text that begins so, and behind those without one."""
    return indexing.prefix(field) + indexing.sortable(text)


def _second(clock: datetime) -> str:
    """As in JSON: texts of one second are not in the order of their times, so all of it is looked at."""
    return f"{clock:%Y-%m-%dT%H:%M:%S}" if clock > NO_CLOCK.at else ""
