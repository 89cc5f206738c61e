"""Records that could not be handled wait here, with the later records of the same key in order behind them.

Only a record's place in the log is parked; its bytes stay in the log. The table of parked records changes in the same
transactions as everything else, so parking and releasing survive whatever happens to a worker.
"""

from __future__ import annotations

from hashlib import sha256

from shared.es.ids import check_aggregate_id
from shared.es.row import Row
from shared.parking import Failure, Parked
from shared.streams.batch import Rows, SourceRecord


class Parking:
    """What is parked in one partition, as the batch sees it. ids: of the parked keys."""

    def __init__(self, rows: Rows, ids: set[str]) -> None:
        self._rows = rows
        self._ids = ids

    def holds(self, processor: str, record: SourceRecord) -> bool:
        """Whether this record or an earlier one of its key is parked: never one before the first parked record."""
        if not self._ids or (id_ := self._id(processor, record)) not in self._ids:
            return False
        parked = self.get(id_)
        return parked is not None and parked.offset <= record.offset

    def park(self, processor: str, record: SourceRecord, failure: Failure) -> None:
        id_ = self._id(processor, record)
        before = self.get(id_)
        if before is not None and before.offset <= record.offset:
            self.keep(id_, before.with_behind(record.offset))
            return
        parked = Parked(
            processor=processor,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            code=failure.code,
            reason=failure.reason,
            attempts=1,
            behind=() if before is None else before.offsets,
        )
        self.keep(id_, parked)

    def get(self, id_: str) -> Parked | None:
        row: Row[Parked] | None = self._rows.get(id_.encode())
        return None if row is None else row.state

    def keep(self, id_: str, parked: Parked | None) -> None:
        """Park exactly this under `id_`; None: nothing any more."""
        if parked is None:
            self._rows.put(id_.encode(), None)
            self._ids.discard(id_)
        else:
            offsets = parked.offsets
            self._rows.put(id_.encode(), Row(len(offsets), parked, {}, offsets[-1]))
            self._ids.add(id_)

    def _id(self, processor: str, record: SourceRecord) -> str:
        """The id of a parked key: its processor, its partition and the key, or the record's place if it has no key.

        With the topic where an earlier release parked the key of another topic, whose offsets say nothing here.
        """
        id_ = f"{processor}/{record.partition}/{_key_text(record)}"
        with_topic = f"{id_}@{record.topic}"
        if with_topic in self._ids:
            return with_topic
        parked = self.get(id_) if id_ in self._ids else None
        return id_ if parked is None or parked.topic == record.topic else with_topic


def _key_text(record: SourceRecord) -> str:
    if record.key is None:
        return f"@{record.topic}@{record.offset}"
    try:
        return check_aggregate_id(record.key.decode())
    except ValueError:
        return "sha256:" + sha256(record.key).hexdigest()
