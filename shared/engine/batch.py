"""The contents of one transaction: changed rows, records to write, source positions, and outcomes to answer."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from shared.domain.envelope import Identity
from shared.domain.errors import NotReady
from shared.domain.row import Outcome
from shared.kafka.transactions import BY_KEY, Headers, Record
from shared.runtime.positions import Place
from shared.runtime.traces import Span
from shared.tables.rows import Rows
from shared.tables.store import StoreFailed
from shared.topology.records import SourceRecord

FULL_RECORDS = 20_000  # or what arrives in FULL_AGE_S: a commit takes the broker as long, however little it holds
FULL_AGE_S = 0.2
LETTER_PART_BYTES = 64 * 1024  # up to six times as much in JSON: key and value still fit Kafka's default record size


WORKER_FAILURES = (NotReady, StoreFailed)
"""Failures that do not come from the record: a dead letter would not help."""


class Refusal(NamedTuple):
    """Brokers refused what a record leads to, as too large. times: the second time, its outcome did not fit either."""

    reason: str
    times: int


Handling = tuple[str, Place, int]
"""A record, as one processor handles it: the processor's name, the record's partition and offset."""


class Batch:
    """Filled by the processors, committed by the engine, dropped when the commit fails.

    refused: what must not be tried again. last: partition and offset of the latest record that was handled.
    repeats: how many commands were decided before. unparks: whether it has what came of operators' requests. traced:
    records of traced stories. spans: to be told once committed.
    """

    def __init__(self, dead_letters: str, refused: Mapping[Handling, Refusal] = MappingProxyType({})) -> None:
        self.dead_letters = dead_letters
        self.refused = refused
        self.last: tuple[Place, int] | None = None
        self.rows: dict[Place, Rows[Any]] = {}
        self.records: list[Record] = []
        self.offsets: dict[Place, int] = {}
        self.outcomes: list[tuple[str, Outcome]] = []
        self.repeats = 0
        self.unparks = False
        self.traced: list[tuple[SourceRecord, Identity]] = []
        self.spans: list[Span] = []
        self.count = 0
        self._begun = time.monotonic()

    def __bool__(self) -> bool:
        return bool(self.offsets)

    @property
    def full(self) -> bool:
        return self.count >= FULL_RECORDS or time.monotonic() - self._begun >= FULL_AGE_S

    def write(
        self, topic: str, key: bytes | None, value: bytes, partition: int = BY_KEY, headers: Headers = ()
    ) -> None:
        self.records.append(Record(topic, key, value, partition, headers))

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

    def advance(self, source: Place, position: int, count: int) -> None:
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
