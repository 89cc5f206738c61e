"""Records that could not be handled wait here, and behind them, in order, the later records of the same key.

A parked record is its place in the log; its bytes stay there. The table of parked records changes in the same
transactions as everything else, so parking and releasing survive whatever happens to a worker.
"""

from __future__ import annotations

from hashlib import sha256

from shared.es.errors import REASON_MAX_CHARS
from shared.es.ids import check_aggregate_id
from shared.es.row import Row
from shared.parking import Failure, Parked
from shared.streams.batch import Rows, SourceRecord


def parked_id(processor: str, record: SourceRecord) -> str:
    """Names a parked key: its processor, its partition and the key, or the record's place where there is no key."""
    return f"{processor}/{record.partition}/{_text(record)}"


class Parking:
    """What is parked in one partition, as the batch sees it. keys: the ids that are parked."""

    def __init__(self, rows: Rows, keys: set[str]) -> None:
        self._rows = rows
        self._keys = keys

    def holds(self, processor: str, record: SourceRecord) -> bool:
        """Whether this record or an earlier one of its key is parked. Read again, those before it are not held."""
        if not self._keys or (key := parked_id(processor, record)) not in self._keys:
            return False
        parked = self.get(key)
        return parked is not None and parked.offset <= record.offset

    def park(self, processor: str, record: SourceRecord, failure: Failure) -> None:
        key = parked_id(processor, record)
        before = self.get(key)
        if before is not None and before.offset <= record.offset:
            self.keep(key, before.with_behind(record.offset))
            return
        parked = Parked(
            processor=processor,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            code=failure.code,
            reason=failure.reason[:REASON_MAX_CHARS],
            attempts=1,
            behind=() if before is None else before.offsets,
        )
        self.keep(key, parked)

    def get(self, key: str) -> Parked | None:
        row: Row[Parked] | None = self._rows.get(key.encode())
        return None if row is None else row.state

    def keep(self, key: str, parked: Parked | None) -> None:
        """From now on just this is parked under `key`."""
        if parked is None:
            self._rows.changed[key.encode()] = None
            self._keys.discard(key)
        else:
            offsets = parked.offsets
            self._rows.changed[key.encode()] = Row(len(offsets), parked, {}, offsets[-1])
            self._keys.add(key)


def _text(record: SourceRecord) -> str:
    if record.key is None:
        return f"@{record.topic}@{record.offset}"
    try:
        return check_aggregate_id(record.key.decode())
    except ValueError:
        return "sha256:" + sha256(record.key).hexdigest()
