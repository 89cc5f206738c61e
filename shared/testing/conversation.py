"""Services that talk over topics, in memory: what a key is told comes in order, whose turn it is a test chooses.

talk = Conversation(processors_of(SERVICE))
talk.say(COMMANDS, "o-1", codec.encode(codec.wrap(PlaceOrder(…), …)))
talk.run(random.choice)
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

from shared.domain.history_index import index_codec
from shared.domain.outcomes import OUTCOME_CODEC
from shared.domain.row import Codec, Outcome, Row
from shared.engine.batch import Batch
from shared.engine.processors import AggregateProcessor, Processor, TimerProcessor
from shared.kafka.transactions import Record
from shared.tables.indexing import Indexes
from shared.tables.rows import Rows
from shared.tables.store import RowStore
from shared.topology.records import SourceRecord
from shared.topology.topics import Table, Topic

Turn = tuple[str, str]
"""The next record of a topic for a key."""

_LATER_MS = 2**48  # in 8,900 years


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A record of a topic. All of memory is one partition."""

    topic: str
    key: bytes
    value: bytes
    offset: int
    partition: int = 0
    timestamp: int = 0


class Conversation:
    """Every record is encoded, decoded and handled by the processors a worker would run.

    log: every record, by topic. outcomes: of every command, with its aggregate's id. Time stands still, and timers
    are due at once: a calendar has always another turn, so its test hears some of them.
    """

    def __init__(self, processors: Iterable[Processor]) -> None:
        self.log: dict[str, list[MemoryRecord]] = defaultdict(list)
        self.outcomes: list[tuple[str, Outcome]] = []
        self._hearers: dict[str, list[Processor]] = defaultdict(list)
        self._queues: dict[Turn, deque[MemoryRecord]] = defaultdict(deque)
        self._tables: dict[Table | None, _Memory] = defaultdict(_Memory)
        for processor in processors:
            self._hearers[processor.source.name].append(processor)

    def say(self, topic: Topic | str, key: str, value: bytes) -> None:
        """Append a record."""
        name = topic if isinstance(topic, str) else topic.name
        record = MemoryRecord(name, key.encode(), value, len(self.log[name]))
        self.log[name].append(record)
        if name in self._hearers:
            self._queues[name, key].append(record)

    def turns(self) -> list[Turn]:
        """Every topic and key with a record that nobody has heard yet."""
        return [turn for turn, queue in self._queues.items() if queue]

    def hear(self, turn: Turn) -> None:
        """Handle the next record of `turn`. Raises AssertionError when it can't be handled."""
        record = self._queues[turn].popleft()
        for processor in self._hearers[record.topic]:
            self._handle(processor, record)

    def run(self, choose: Callable[[Sequence[Turn]], Turn]) -> None:
        """Handle records in the chosen order until everything is heard."""
        while turns := self.turns():
            self.hear(choose(turns))

    def row(self, processor: Processor, key: str) -> Row[Any] | None:
        """What the processor's table keeps of `key`."""
        assert processor.table is not None
        assert processor.codec is not None
        value = self._tables[processor.table].get(0, key.encode())
        return None if value is None else processor.codec.decode(value)

    def rows(self, table: Table) -> dict[str, bytes]:
        """The encoded rows of a table by key, in the keys' order."""
        return {key.decode(): value for key, value in sorted(self._tables[table].items())}

    def _handle(self, processor: Processor, record: MemoryRecord) -> None:
        record = replace(record, timestamp=_LATER_MS) if isinstance(processor, TimerProcessor) else record
        batch = _handled(processor, self._tables, [record])
        self.outcomes += batch.outcomes
        for written in batch.records:
            assert written.key is not None
            if written.partition > 0:
                continue  # a copy for another partition
            self.say(written.topic, written.key.decode(), written.value or b"")


def replayed(processor: Processor, records: Iterable[SourceRecord]) -> tuple[dict[bytes, bytes], list[Record]]:
    """The encoded rows by key, and the records written, that a processor makes of its source from nothing."""
    tables = defaultdict[Table | None, _Memory](_Memory)
    batch = _handled(processor, tables, records)
    return dict(tables[processor.table]), batch.records


def _handled(processor: Processor, tables: Mapping[Table | None, _Memory], records: Iterable[SourceRecord]) -> Batch:
    """What the records lead to; `tables` has and gets the rows."""
    batch, rows = Batch("dead-letters"), None
    if processor.codec is not None:
        rows = _rows(tables, processor.table, processor.codec)
        rows.outcomes = _rows(tables, processor.outcomes, OUTCOME_CODEC)
        rows.ended = _rows(tables, processor.history_index, _index_codec(processor))
        rows.beside = {table: _rows(tables, table, codec) for table, codec in processor.beside.items()}
    for record in records:
        failure = processor.attempt(record, rows, batch)
        while processor.is_spreading:
            failure = processor.attempt(record, rows, batch)
        assert failure is None, failure
    if rows is not None and rows.outcomes is not None and rows.ended is not None:
        tables[processor.table].change(rows)
        tables[processor.outcomes].change(rows.outcomes)
        tables[processor.history_index].change(rows.ended)
        for table, changed in rows.beside.items():
            tables[table].change(changed)
    return batch


def _rows(tables: Mapping[Table | None, _Memory], table: Table | None, codec: Codec[Any]) -> Rows[Any]:
    name, partitions = (table.name, 1) if table is not None and table.keyed_by_id else ("", None)
    return Rows(name, cast(RowStore, tables[table]), 0, partitions, codec, careful=True)


@cache
def _index_codec(processor: Processor) -> Codec[Any]:
    return index_codec(processor.decider.state if isinstance(processor, AggregateProcessor) else Any)


def entries(rows: Mapping[bytes, bytes], index: str, start: bytes) -> Iterator[bytes]:
    """Of the index, behind `start`. rows: encoded, by key."""
    of_rows = Indexes([index])
    return iter(sorted(each for key, row in rows.items() for each in of_rows.entries(key, row) if each > start))


class _Memory(dict[bytes, bytes]):
    """Stands in for a RowStore."""

    def get(self, _partition: int, key: bytes) -> bytes | None:  # type: ignore[override]
        return super().get(key)

    def keys_by(self, _partition: int, index: str, start: bytes) -> Iterator[bytes]:
        return entries(self, index, start)

    def change(self, rows: Rows[Any]) -> None:
        for key, value in rows.encoded().items():
            self.pop(key, None)
            if value is not None:
                self[key] = value
