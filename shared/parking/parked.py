"""What is known of records that could not be handled, and what operators can have done with them. Pure."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, insort
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, field_validator

from shared.domain.envelope import occurred_in
from shared.domain.row import FAILED, RowCodec

_NOTED_ID = re.compile(r".*@([a-z0-9-]+\.[a-z0-9-]+\.v[0-9]+)", re.DOTALL)

BUG = "processor.failed"
PAGE_CODE = "page"
_PAGE = "\x02"  # begins the ids of pages and of the note below, and no other
NOTE_ID = f"{_PAGE}topics"
"""Of the row in each partition that notes which topics it has handled records of; no scan of the store lists it."""
BEGINS_ID = f"{_PAGE}begins"
"""Of the row in each partition that notes from which offset on a processor handles its source, where that lies ahead of
the position; nor is it listed."""
STOOD = ""
"""In that note, in the place of a processor's name: where the group stood in the source before `reprocess` or `rebuild`
moved its position back."""
SUPERSEDED_ID = f"{_PAGE}superseded"
"""Of the row in each partition that says that the next version goes on from its positions; nor is it listed."""
_ENDED = f"{_PAGE}ended/"
_CLOCK = f"{_PAGE}clock/"
_ABOUT_VIEWS = _ENDED.encode(), _CLOCK.encode()
_NOTES = NOTE_ID.encode(), BEGINS_ID.encode(), SUPERSEDED_ID.encode()


class Failure(NamedTuple):
    """Why a record was not handled. code: stable, for programs. reason: at most REASON_MAX_CHARS."""

    code: str
    reason: str


class Clock(NamedTuple):
    """What time it is in a partition, by its events alone: the latest `occurred_at` up to the record at `offset`."""

    offset: int
    at: datetime

    def after(self, offset: int, value: bytes | None) -> Clock:
        """As of the record there."""
        occurred = occurred_in(value)
        return Clock(offset, self.at if occurred is None else max(self.at, occurred))


NO_CLOCK = Clock(-1, datetime.min.replace(tzinfo=UTC))
"""Before the first record."""


class Parked(BaseModel):
    """The parked records of one key for one processor: all of them, or one page of many.

    offset, code, reason: of the first record, which was tried `attempts` times. behind: the offsets that follow it.
    pages: the first offset of each further page, in rows of their own, with `paged` records in all.
    """

    model_config = ConfigDict(frozen=True)

    processor: str
    topic: str
    partition: int
    offset: int
    code: str
    reason: str
    attempts: int
    behind: tuple[int, ...] = ()
    pages: tuple[int, ...] = ()
    paged: int = 0

    @property
    def reason_without_contents(self) -> str:
        """Of a bug only its type: what it says may quote a record."""
        return self.reason.partition(":")[0] if self.code in (BUG, FAILED) else self.reason

    @property
    def is_page(self) -> bool:
        """Whether it continues another row, which nobody sees or retries by itself."""
        return self.code == PAGE_CODE

    @property
    def offsets(self) -> tuple[int, ...]:
        """Without those on further pages."""
        return (self.offset, *self.behind)

    @property
    def waiting(self) -> int:
        """How many records wait behind the first."""
        return len(self.behind) + self.paged

    def with_behind(self, offset: int) -> Parked:
        """The same with this record added, once. A record that is read again may lie between two parked ones."""
        at = bisect_left(self.behind, offset)
        if offset in (self.offset, *self.behind[at : at + 1]):
            return self
        return self.model_copy(update={"behind": (*self.behind[:at], offset, *self.behind[at:])})

    def without(self, first: int) -> Parked:
        """What is left when the first `first` of `offsets` are handled or dropped; the next one was not tried yet."""
        return self._from(first, "behind") if first else self

    def halves(self) -> tuple[Parked, Parked]:
        """The first half of `offsets`, with the pages, and a page of the others."""
        middle = len(self.offsets) // 2
        page = self._from(middle, PAGE_CODE).model_copy(update={"pages": (), "paged": 0})
        return self.model_copy(update={"behind": self.behind[: middle - 1]}), page

    def with_page(self, first: int) -> Parked:
        """The same with one more page, whose records `with_paged` counts."""
        pages = list(self.pages)
        insort(pages, first)
        return self.model_copy(update={"pages": tuple(pages)})

    def with_paged(self, more: int) -> Parked:
        return self.model_copy(update={"paged": self.paged + more})

    def turned_to(self, page: Parked) -> Parked:
        """The first of its pages, in its place."""
        left = {"pages": self.pages[1:], "paged": self.paged - len(page.offsets)}
        return page.model_copy(update={**left, "code": "behind"})

    def _from(self, first: int, code: str) -> Parked:
        rest = self.offsets[first:]
        return self.model_copy(
            update={"offset": rest[0], "behind": rest[1:], "code": code, "reason": "", "attempts": 0}
        )

    def failed(self, failure: Failure) -> Parked:
        """The same after one more failed attempt at the first record."""
        return self.model_copy(update={**failure._asdict(), "attempts": self.attempts + 1})


def note_of(partition: int, noted: Mapping[str, Any]) -> Parked:
    """noted: what is known of topics, by their names: their ids, or where processors of them begin."""
    return _note(partition, json.dumps(noted, sort_keys=True))


def note_of_successor(partition: int, group: str) -> Parked:
    """group: of the next version."""
    return _note(partition, group)


def note_of_ended(partition: int, source: str, offset: int) -> Parked:
    """offset: the rows of a view include `source` up to there, also those that have ended and are no more."""
    return _note(partition, source, offset)


def ended_id(table: str) -> str:
    """Of that note about the table, which no scan of the store lists."""
    return f"{_ENDED}{table}"


def note_of_clock(partition: int, source: str, clock: Clock) -> Parked:
    return _note(partition, json.dumps({source: clock.at.isoformat()}), clock.offset)


def clock_in(note: Parked | None, source: str) -> Clock:
    """Of a view whose rows expire. A note about another source says nothing."""
    at = None if note is None else noted_in(note).get(source)
    return NO_CLOCK if note is None or at is None else Clock(note.offset, datetime.fromisoformat(at))


def clock_id(table: str, parked: int | None = None) -> str:
    """Of that note about the table, or of the one for a parked record; no scan of the store lists them."""
    return f"{_CLOCK}{table}" if parked is None else f"{_CLOCK}{table}/{parked}"


def is_note(key: bytes | None) -> bool:
    """Whether the row of that key tells of what the version has done, and not of what is parked."""
    return key is not None and (key in _NOTES or key.startswith(_ABOUT_VIEWS))


def _note(partition: int, text: str, offset: int = 0) -> Parked:
    """In the shape of a page, which earlier releases leave alone."""
    return Parked(processor="", topic="", partition=partition, offset=offset, code=PAGE_CODE, reason=text, attempts=0)


def noted_in(note: Parked) -> dict[str, Any]:
    return dict(json.loads(note.reason))


PARKED_CODEC: RowCodec[Parked] = RowCodec(Parked)


class OperatorRequest(BaseModel):
    """What an operator wants done with a parked key: try all its records again in order, or drop the first one.

    offset: of the first record as the operator saw it; no other record is dropped or corrected in its place.
    by: who asked for it; "" where nobody said. Releases without it do not read a request that has one.
    value: what the first record is read as by `correct`, which else is a `retry`. It holds the same command, with other
    data, so whatever is asked or sent beside it, that takes effect once.

    The other actions are notes of what was done, which the engine skips; they share the topic, so that requests and
    notes have one order. `dropped`: the engine discarded that record. `reprocess`: a view is computed again, so records
    that were dropped before are read again; the id names a partition of the view, not a key, and `offset` is the first
    record that counts. The ids of notes end with the topic that `offset` is in, as `noted_id` makes them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["retry", "discard", "correct", "dropped", "reprocess"]
    id: str
    offset: int | None = None
    reason: str = ""
    by: str = ""
    value: str | None = None

    @field_validator("id")
    @classmethod
    def _names_a_partition(cls, text: str) -> str:
        partition_of_id(text)
        return text

    @property
    def is_note(self) -> bool:
        return self.action in ("dropped", "reprocess")

    @property
    def record(self) -> tuple[bytes, bytes]:
        """Key and value of its record, which belongs in the partition that the id names."""
        unsaid = {name for name in ("by", "value") if not getattr(self, name)}
        return self.id.encode(), self.model_dump_json(exclude=unsaid).encode()


def noted_id(text: str, topic: str) -> str:
    """An id, for a note about a record of `topic`."""
    return text if text.endswith(f"@{topic}") else f"{text}@{topic}"


def is_noted_in(text: str, topic: str) -> bool:
    """Whether a note with this id is about a record of `topic`; those of earlier releases do not say of which."""
    found = _NOTED_ID.fullmatch(text)
    return found is None or found[1] == topic


def ends_with_topic(text: str) -> bool:
    return _NOTED_ID.fullmatch(text) is not None


def processor_of_id(text: str) -> str:
    return text.split("/", 1)[0]


def page_id(text: str, first: int) -> str:
    """The id of a page's row, which no scan of the store lists."""
    return f"{_PAGE}{text}\x00{first}"


def partition_of_id(text: str) -> int:
    """Raises ValueError, also for the id of a page."""
    number = f"{text}/".split("/", 2)[1]
    if text.startswith(_PAGE) or not number.isdecimal():
        raise ValueError(f"{text!r} names no partition")
    return int(number)
