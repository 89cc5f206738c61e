"""Records that could not be handled wait here, with the later records of the same key in order behind them.

Only a record's place in the log is parked; its bytes stay in the log. The table of parked records changes in the same
transactions as everything else, so parking and releasing survive whatever happens to a worker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice

from shared.domain.ids import check_aggregate_id
from shared.domain.row import Row
from shared.parking.parked import (
    BEGINS_ID,
    NOTE_ID,
    SUPERSEDED_ID,
    Clock,
    Failure,
    Parked,
    clock_id,
    clock_in,
    ended_id,
    ends_with_topic,
    note_of,
    note_of_clock,
    note_of_ended,
    noted_in,
    page_id,
)
from shared.tables.rows import Rows
from shared.topology.records import SourceRecord

_HASH = "sha256:"

PAGE_RECORDS = 1_000  # a row is written with every batch that adds to it, and has to fit its topic


class Parking:
    """What is parked in one partition, as the batch sees it. ids: of the parked keys."""

    def __init__(self, rows: Rows, ids: set[str]) -> None:
        self._rows = rows
        self._ids = ids

    @property
    def ids(self) -> frozenset[str]:
        """Of all that is parked."""
        return frozenset(self._ids)

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
            self._add(id_, before, record.offset)
            return
        parked = _first(processor, record, failure)
        if before is not None:
            later = {"behind": before.offsets, "pages": before.pages, "paged": before.paged}
            parked = parked.model_copy(update=later)
        self.keep(id_, parked)

    def set_aside(self, processor: str, record: SourceRecord, failure: Failure) -> None:
        """Park the record alone, under the id of its place: later ones of its key do not wait for it."""
        id_ = place_id(processor, record)
        if id_ not in self._ids:  # else it is read again
            self.keep(id_, _first(processor, record, failure))

    def get(self, id_: str) -> Parked | None:
        """The first page of what is parked under `id_`."""
        row: Row[Parked] | None = self._rows.get(id_.encode())
        return None if row is None else row.state

    def offsets(self, id_: str) -> Iterator[int]:
        """Of all records that are parked under `id_`, in order."""
        parked = self.get(id_)
        if parked is not None:
            yield from parked.offsets
            for first in parked.pages:
                yield from self._page(id_, first).offsets

    def keep(self, id_: str, parked: Parked) -> None:
        """Park exactly this, and the pages that it names, under `id_`."""
        if len(parked.offsets) > PAGE_RECORDS:
            parked, page = parked.halves()
            self._write(page_id(id_, page.offset), page)
            parked = parked.with_page(page.offset).with_paged(len(page.offsets))
        self._write(id_, parked)
        self._ids.add(id_)

    def drop(self, id_: str, count: int) -> Parked | None:
        """Let the first `count` records go. Returns the first page of those that stay parked."""
        parked = self.get(id_)
        for offset in islice(self.offsets(id_), count):
            if parked is not None and self.get(noted := clock_id(parked.processor, offset)) is not None:
                self._rows.put(noted.encode(), None)
        while parked is not None and count >= len(parked.offsets):
            count -= len(parked.offsets)
            parked = self._next(id_, parked)
        if parked is None:
            self._rows.put(id_.encode(), None)
            self._ids.discard(id_)
            return None
        left = parked.without(count)
        self.keep(id_, left)
        return left

    @property
    def topics(self) -> dict[str, str]:
        """The ids of the topics that this partition has handled records of, as far as they were noted."""
        note = self.get(NOTE_ID)
        return {} if note is None else noted_in(note)

    @property
    def begins(self) -> dict[str, dict[str, int]]:
        """By source and processor, the first offset that it handles, as far as that was noted."""
        note = self.get(BEGINS_ID)
        return {} if note is None else noted_in(note)

    @property
    def superseded(self) -> bool:
        """Whether the next version goes on from this one's positions."""
        return self.get(SUPERSEDED_ID) is not None

    def note_topics(self, partition: int, ids: Mapping[str, str]) -> None:
        self._write(NOTE_ID, note_of(partition, ids))

    def note_begins(self, partition: int, begins: Mapping[str, Mapping[str, int]]) -> None:
        self._write(BEGINS_ID, note_of(partition, begins))

    def ended(self, table: str, source: str) -> int:
        """The offset of the last record of `source` that has ended a row of the view; -1 if none has."""
        note = self.get(ended_id(table))
        return -1 if note is None or note.reason != source else note.offset

    def note_ended(self, table: str, partition: int, source: str, offset: int) -> None:
        self._write(ended_id(table), note_of_ended(partition, source, offset))

    def clock(self, table: str, source: str, parked: int | None = None) -> Clock:
        """Of a view whose rows expire. parked: as of the parked record at that offset."""
        return clock_in(self.get(clock_id(table, parked)), source)

    def committed_clock(self, table: str, source: str) -> Clock:
        """The same, as far as the store has it."""
        raw = self._rows.store.get(self._rows.partition, clock_id(table).encode())
        return clock_in(None if raw is None else self._rows.codec.decode(raw).state, source)

    def note_clock(self, table: str, partition: int, source: str, clock: Clock, *, parked: int | None = None) -> None:
        self._write(clock_id(table, parked), note_of_clock(partition, source, clock))

    def _add(self, id_: str, parked: Parked, offset: int) -> None:
        at = bisect_right(parked.pages, offset)
        if not at:
            self.keep(id_, parked.with_behind(offset))
            return
        page = self._page(id_, parked.pages[at - 1])
        longer = page.with_behind(offset)
        if longer is page:
            return  # the record is read again
        if len(longer.offsets) > PAGE_RECORDS:
            longer, rest = longer.halves()
            self._write(page_id(id_, rest.offset), rest)
            parked = parked.with_page(rest.offset)
        self._write(page_id(id_, longer.offset), longer)
        self._write(id_, parked.with_paged(1))

    def _next(self, id_: str, parked: Parked) -> Parked | None:
        """The next page, which has no row of its own any more."""
        if not parked.pages:
            return None
        page = self._page(id_, parked.pages[0])
        self._rows.put(page_id(id_, page.offset).encode(), None)
        return parked.turned_to(page)

    def _page(self, id_: str, first: int) -> Parked:
        page = self.get(page_id(id_, first))
        assert page is not None, f"{id_}: the page at {first} is missing"
        return page

    def _write(self, id_: str, parked: Parked) -> None:
        offsets = parked.offsets
        self._rows.put(id_.encode(), Row(len(offsets), parked, {}, offsets[-1]))

    def _id(self, processor: str, record: SourceRecord) -> str:
        """The id of a parked key: its processor, its partition and the key, or the record's place if it has no key.

        With the topic where an earlier release parked the key of another topic, whose offsets say nothing here.
        """
        ids = [f"{processor}/{record.partition}/{text}" for text in _key_texts(record)]
        id_ = next((each for each in ids if each in self._ids), ids[-1])
        with_topic = f"{id_}@{record.topic}"
        if with_topic in self._ids:
            return with_topic
        parked = self.get(id_) if id_ in self._ids else None
        return id_ if parked is None or parked.topic == record.topic else with_topic


def place_id(processor: str, record: SourceRecord) -> str:
    """The id under which a record is parked that has no key, or that later ones of its key do not wait for."""
    return f"{processor}/{record.partition}/{_place(record)}"


def _place(record: SourceRecord) -> str:
    return f"@{record.topic}@{record.offset}"


def _first(processor: str, record: SourceRecord, failure: Failure) -> Parked:
    return Parked(
        processor=processor,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        code=failure.code,
        reason=failure.reason,
        attempts=1,
    )


def _key_texts(record: SourceRecord) -> Sequence[str]:
    """The key in the id under which it is parked, behind the one that earlier releases gave it, if that differs.

    A key that looks like what the id of another key can end with is hashed: else it could stop that one.
    """
    if record.key is None:
        return (_place(record),)
    try:
        text = check_aggregate_id(record.key.decode())
    except ValueError:
        return (_hashed(record.key),)
    is_ambiguous = text.startswith(("@", _HASH)) or ends_with_topic(text)
    return (text, _hashed(record.key)) if is_ambiguous else (text,)


def _hashed(key: bytes) -> str:
    return _HASH + sha256(key).hexdigest()
