"""The contents of one transaction: changed rows, records to write, source positions, and outcomes to answer."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol

from typing_extensions import TypeVar

from shared.es.errors import NotReady, RowUnreadable
from shared.es.outcomes import Decided
from shared.es.row import Codec, Outcome, Row
from shared.kafka.murmur2 import check_home
from shared.kafka.transactions import BY_KEY, Record
from shared.positions import Partition
from shared.streams.store import RowStore, StoreFailed

FULL_RECORDS = 20_000  # or what arrives in FULL_AGE_S: a commit takes the broker as long, however little it holds
FULL_AGE_S = 0.2
ENCODED_AT_ONCE = 50  # rows: the HTTP side waits meanwhile
LETTER_PART_BYTES = 64 * 1024  # up to six times as much in JSON: key and value still fit Kafka's default record size


class SourceRecord(Protocol):
    """The part of a consumed record that processors read."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int:
        """When it was appended, by its broker, in ms since the epoch."""


class RowUnwritable(Exception):
    """A new row could not be read again, by a state that `evolve` made: an infinite float, a number out of range.

    changelog: the partition that it would have been written to.
    """

    def __init__(self, changelog: Partition, error: Exception) -> None:
        super().__init__(f"a new row of {changelog[0]} could not be read again: {error}")
        self.changelog = changelog


WORKER_FAILURES = (NotReady, StoreFailed)
"""Failures that do not come from the record: a dead letter would not help."""


R = TypeVar("R", default=Row[Any])


class Rows(Generic[R]):
    """One partition of a table as a batch sees it: its own changes over the previous batch's, over the store's rows.

    outcomes: the table of what became of the commands, beside that of their aggregates.
    """

    outcomes: Rows[Decided] | None = None

    def __init__(
        self,
        changelog: str,
        store: RowStore,
        partition: int,
        partitions: int | None,
        codec: Codec[R],
        pending: Mapping[bytes, R | None] = MappingProxyType({}),
        *,
        careful: bool = False,
    ) -> None:
        """partitions: their number if keys are aggregate ids, which murmur2 assigns to partitions; else None.

        pending: changes of the previous batch, which the store may not have yet. careful: check each change at once,
        so that the record which led to it is known; otherwise only the last change of each row, when it is encoded.
        """
        self.changelog = changelog
        self.store = store
        self.partition = partition
        self.partitions = partitions
        self.codec = codec
        self._pending = pending
        self._careful = careful
        self.changed: dict[bytes, R | None] = {}  # None: deleted

    def get(self, key: bytes) -> R | None:
        """Raises BadMessage for a new key that is no aggregate id or belongs elsewhere: no read would find its row."""
        if key in self.changed:
            return self.changed[key]
        if key in self._pending:
            return self._pending[key]
        value = self.store.get(self.partition, key)
        if value is None:
            if self.partitions is not None:
                check_home(key, self.partition, self.partitions)
            return None
        try:
            return self.codec.decode_whole(value)
        except ValueError as error:
            raise RowUnreadable(self.changelog, self.partition, key, error) from None

    def put(self, key: bytes, row: R | None) -> None:
        """Change a row; None deletes it. Raises RowUnwritable, with nothing changed."""
        if self._careful and row is not None:
            self._encoded([row])
        self.changed[key] = row

    def encoded(self) -> dict[bytes, bytes | None]:
        """Raises RowUnwritable."""
        encoded: dict[bytes, bytes | None] = dict.fromkeys(self.changed)
        kept = ((key, row) for key, row in self.changed.items() if row is not None)
        while some := list(islice(kept, ENCODED_AT_ONCE)):
            keys, rows = zip(*some, strict=True)
            encoded |= zip(keys, self._encoded(rows), strict=True)
        return encoded

    def _encoded(self, rows: Sequence[R]) -> list[bytes]:
        try:
            return self.codec.encode_checked(rows)
        except (ValueError, RecursionError) as error:
            raise RowUnwritable((self.changelog, self.partition), error) from error


class Refusal(NamedTuple):
    """Brokers refused what a record leads to, as too large. times: the second time, its outcome did not fit either."""

    reason: str
    times: int


Handling = tuple[str, str, int, int]
"""A record, as one processor handles it: the processor's name, topic, partition and offset."""


class Batch:
    """Filled by the processors, committed by the engine, dropped when the commit fails.

    refused: what must not be tried again. last: the place of the latest record that was handled.
    """

    def __init__(self, dead_letters: str, refused: Mapping[Handling, Refusal] = MappingProxyType({})) -> None:
        self.dead_letters = dead_letters
        self.refused = refused
        self.last: tuple[Partition, int] | None = None
        self.rows: dict[Partition, Rows[Any]] = {}
        self.records: list[Record] = []
        self.offsets: dict[Partition, int] = {}
        self.outcomes: list[tuple[str, Outcome]] = []
        self.count = 0
        self._begun = time.monotonic()

    def __bool__(self) -> bool:
        return bool(self.offsets)

    @property
    def full(self) -> bool:
        return self.count >= FULL_RECORDS or time.monotonic() - self._begun >= FULL_AGE_S

    def write(self, topic: str, key: bytes | None, value: bytes, partition: int = BY_KEY) -> None:
        self.records.append(Record(topic, key, value, partition))

    def bury(self, record: SourceRecord, code: str, reason: str) -> None:
        """Write a dead letter for a record that can't be handled: its place, its contents and the reason.

        Keys and values that are too long for a letter are cut; the place is enough to find the whole record.
        """
        letter = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "code": code,
            "reason": reason,
            "key": _text(record.key),
            "value": _text(record.value),
        }
        key = None if record.key is None else record.key[:LETTER_PART_BYTES]
        self.write(self.dead_letters, key, json.dumps(letter).encode())

    def advance(self, source: Partition, position: int, count: int) -> None:
        """`count` more records of `source` are handled; `position` is the next."""
        self.offsets[source] = position
        self.count += count
        if count:
            self.last = source, position - 1


def _text(raw: bytes | None) -> dict[str, str | int] | None:
    """Bytes in a form that JSON carries without loss. of_bytes: the whole length, when they are cut."""
    if raw is None:
        return None
    kept = raw[:LETTER_PART_BYTES]
    cut = {"of_bytes": len(raw)} if len(raw) > len(kept) else {}
    try:
        return {"utf8": kept.decode(), **cut}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(kept).decode(), **cut}
