"""What one transaction will make true: changed rows, records to write, positions reached, outcomes to answer."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from shared.es.errors import BadMessage, NotReady
from shared.es.ids import check_aggregate_id
from shared.es.row import Outcome, Row, RowCodec
from shared.kafka.murmur2 import partition_of
from shared.kafka.transactions import BY_KEY, Record
from shared.positions import Partition
from shared.streams.store import RowStore, StoreFailed

FULL_RECORDS = 20_000  # or what comes in FULL_AGE_S: a commit waits for the broker as long, however little it holds
FULL_AGE_S = 0.2
LETTER_PART_BYTES = 64 * 1024  # six times as much as JSON, so that key and value fit a record of Kafka's default size


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


class RowUnreadable(Exception):
    """A committed row is not of the shape its codec reads, or has a field that it would lose.

    Operator action: if a later release wrote it, start no older worker. Otherwise give the state a reader of its older
    rows, or raise `version` and rebuild.
    """


NOT_OF_THE_RECORD = (NotReady, RowUnreadable, StoreFailed)
"""Failures that would befall any record: no dead letter helps."""


class Rows:
    """One partition of a table as a batch sees it: its own changes over those of the batch before, over the store."""

    def __init__(
        self,
        changelog: str,
        store: RowStore,
        partition: int,
        partitions: int | None,
        codec: RowCodec[Any],
        pending: Mapping[bytes, Row[Any] | None] = MappingProxyType({}),
    ) -> None:
        """partitions: how many there are, where keys are ids and murmur2 says which is theirs; None where it does not.

        pending: what the batch before changed, which the store may not have yet.
        """
        self.changelog = changelog
        self.store = store
        self.partition = partition
        self.partitions = partitions
        self.codec = codec
        self._pending = pending
        self.changed: dict[bytes, Row[Any] | None] = {}  # None: deleted

    def get(self, key: bytes) -> Row[Any] | None:
        """Raises BadMessage for a new key that is no id or belongs elsewhere: nobody would look for its row here."""
        if key in self.changed:
            return self.changed[key]
        if key in self._pending:
            return self._pending[key]
        value = self.store.get(self.partition, key)
        if value is None:
            self._check_new(key)
            return None
        try:
            return self.codec.decode_whole(value)
        except ValueError as error:
            raise RowUnreadable(f"{self.changelog}/{self.partition}: {error}") from error

    def _check_new(self, key: bytes) -> None:
        if self.partitions is None:
            return
        try:
            check_aggregate_id(key.decode())
        except ValueError as error:
            raise BadMessage(f"its key names no row: {error}") from error
        home = partition_of(key, self.partitions)
        if home != self.partition:
            raise BadMessage(f"in partition {self.partition}, but its key belongs to {home}: sent without murmur2?")

    def encoded(self) -> dict[bytes, bytes | None]:
        encode = self.codec.encode
        return {key: None if row is None else encode(row) for key, row in self.changed.items()}


class Batch:
    """Filled by the processors, committed by the engine, dropped when the commit fails."""

    def __init__(self, dead_letters: str) -> None:
        self.dead_letters = dead_letters
        self.rows: dict[Partition, Rows] = {}
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
        """Put a record that can't be handled into the dead letters, with its place and reason.

        What is too long for a letter is cut; its beginning and its place are enough to find the rest.
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


def _text(raw: bytes | None) -> dict[str, str | int] | None:
    """Bytes as JSON can carry them without loss; of_bytes: how many there were, when they are cut."""
    if raw is None:
        return None
    kept = raw[:LETTER_PART_BYTES]
    cut = {"of_bytes": len(raw)} if len(raw) > len(kept) else {}
    try:
        return {"utf8": kept.decode(), **cut}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(kept).decode(), **cut}
