"""What is known of records that could not be handled, and what operators can have done with them. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, field_validator

from shared.es.row import RowCodec

_NOTED_ID = re.compile(r".*@([a-z0-9-]+\.[a-z0-9-]+\.v[0-9]+)", re.DOTALL)


class Failure(NamedTuple):
    """Why a record was not handled. code: stable, for programs. reason: at most REASON_MAX_CHARS."""

    code: str
    reason: str


class Parked(BaseModel):
    """All parked records of one key for one processor.

    offset, code, reason: of the first record, which was tried `attempts` times. behind: the offsets that follow it.
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

    @property
    def offsets(self) -> tuple[int, ...]:
        return (self.offset, *self.behind)

    def with_behind(self, offset: int) -> Parked:
        """The same with this record added, once. A record that is read again may lie between two parked ones."""
        at = bisect_left(self.behind, offset)
        if offset in (self.offset, *self.behind[at : at + 1]):
            return self
        return self.model_copy(update={"behind": (*self.behind[:at], offset, *self.behind[at:])})

    def without(self, first: int) -> Parked | None:
        """What is left when the first `first` records are handled or dropped; the next one was not tried yet."""
        if not first:
            return self
        if first > len(self.behind):
            return None
        rest = {"offset": self.behind[first - 1], "behind": self.behind[first:]}
        return self.model_copy(update={**rest, "code": "behind", "reason": "", "attempts": 0})

    def failed(self, failure: Failure) -> Parked:
        """The same after one more failed attempt at the first record."""
        return self.model_copy(update={**failure._asdict(), "attempts": self.attempts + 1})


PARKED_CODEC: RowCodec[Parked] = RowCodec(Parked)


class Wish(BaseModel):
    """What an operator wants done with a parked key: try all its records again in order, or drop the first one.

    offset: of the first record as the operator saw it; no other record is dropped in its place.

    The other actions are notes of what was done, which the engine skips; they share the topic so that wishes and notes
    have one order. `dropped`: the engine discarded that record. `reprocess`: a view is computed again, so records that
    were dropped before are read again; the id names a partition of the view, not a key, and `offset` is the first
    record that counts. The ids of notes end with the topic that `offset` is in, as `noted_id` makes them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["retry", "discard", "dropped", "reprocess"]
    id: str
    offset: int | None = None
    reason: str = ""

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
        return self.id.encode(), self.model_dump_json().encode()


def noted_id(text: str, topic: str) -> str:
    """An id, for a note about a record of `topic`."""
    return text if text.endswith(f"@{topic}") else f"{text}@{topic}"


def is_noted_in(text: str, topic: str) -> bool:
    """Whether a note with this id is about a record of `topic`; those of earlier releases do not say of which."""
    found = _NOTED_ID.fullmatch(text)
    return found is None or found[1] == topic


def processor_of_id(text: str) -> str:
    return text.split("/", 1)[0]


def partition_of_id(text: str) -> int:
    """Raises ValueError."""
    part = f"{text}/".split("/", 2)[1]
    if not part.isdecimal():
        raise ValueError(f"{text!r} names no partition")
    return int(part)
