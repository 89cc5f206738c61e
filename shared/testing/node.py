"""A worker without Kafka: the same processors over rows in memory, each record handled as it is appended.

For tests of what HTTP adds. It owns every partition, and timers are due at once; what only a broker shows is tested on
one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any, cast
from uuid import uuid4

from shared.domain.history_index import LogBegins
from shared.domain.row import Row
from shared.engine.answers import Answers
from shared.engine.batch import Batch
from shared.engine.processors import Processor
from shared.engine.wiring import by_source, codecs_of, decider_of, wired
from shared.kafka.murmur2 import partition_of
from shared.kafka.reader import ReadRecord
from shared.kafka.transactions import BY_KEY, Record
from shared.runtime.clock import brokers_clock
from shared.runtime.positions import Committed, Place
from shared.runtime.routes import Routes
from shared.runtime.settings import Settings
from shared.runtime.status import ReplicaStatus, SourceStatus, Status
from shared.runtime.tracing import Tracing
from shared.tables import indexing
from shared.tables.feed import Change, Feed
from shared.tables.rows import Rows
from shared.tables.store import RowStore
from shared.testing.conversation import entries
from shared.topology.topics import Table, Topic, Topology

LONGEST = 10_000  # chain of records that one leads to


class MemoryNode:
    """Is a `shared.http.node.Node`."""

    def __init__(self, topology: Topology, processors: Sequence[Processor], settings: Settings | None = None) -> None:
        """processors: none for a worker that is asked, and never written to.

        settings: the keys of personal fields are in their data_dir, by default a folder that is made if there are any.
        """
        self.topology = topology
        self.decider = decider_of(processors)
        self.tracing: Tracing | None = None
        self.routes: Routes | None = None
        self.settings = settings or Settings(data_dir=Path(gettempdir(), f"onefold-{uuid4()}"))
        self.refuses: set[int] = set()
        """Partitions that nobody owns."""
        self.logs: dict[Place, list[bytes]] = defaultdict(list)
        self.removed: dict[Place, int] = {}
        """How many records retention has removed of a log."""
        working = wired(topology, processors) if processors else ()
        self._processors = by_source(topology, working)
        self._codecs = codecs_of(topology, working)
        self._rows: dict[str, dict[int, dict[bytes, bytes]]] = {
            table.name: {partition: {} for partition in range(topology.partitions)} for table in topology.all_tables()
        }
        self._changelogs: dict[tuple[str, int], list[tuple[bytes, bytes | None]]] = defaultdict(list)
        self._waiting = Answers()
        self._handled = 0

    def partition(self, key: bytes) -> int:
        return partition_of(key, self.topology.partitions)

    def owner(self, table: Table, partition: int) -> str | None:
        return None if partition in self.refuses else self.settings.url

    def members(self) -> frozenset[str]:
        return frozenset({self.settings.url})

    def serves(self, table: Table, partition: int) -> bool:
        return partition < self.topology.partitions and partition not in self.refuses

    async def standby_lag(self, table: Table, partition: int) -> int | None:
        return None

    def state_type(self, table: Table) -> Any:
        return self._codecs[table.name].state_type if table.name in self._codecs else Any

    def read(self, table: Table, partition: int, key: bytes) -> Row[Any] | None:
        value = self._rows[table.name][partition].get(key)
        return None if value is None else self._codecs[table.name].decode(value)

    def position(self, table: Table, partition: int) -> int:
        return len(self.logs[Place(table.source.name, partition)]) - 1

    def event_offsets(self, partition: int) -> Mapping[Place, int]:
        topics = {each.events.name for some in self._processors.values() for each in some if each.events}
        return {place: len(self.logs[place]) - 1 for place in (Place(topic, partition) for topic in topics)}

    async def progress(self) -> None:
        await self._waiting.progress()

    def watch(self, table: Table, key: bytes) -> AbstractContextManager[asyncio.Event]:
        return self._waiting.watch(table.name, key)

    def keys(self, table: Table, partition: int, after: bytes = b"") -> Iterator[bytes]:
        return (key for key in sorted(self._rows[table.name][partition]) if key > after)

    def keys_by(
        self, table: Table, partition: int, index: str, start: bytes = b"", descending: bool = False
    ) -> Iterator[bytes]:
        entries = (each for each in self._entries(table, partition) if each.startswith(indexing.prefix(index)))
        for entry in sorted(entries, reverse=descending):
            if not start or (entry < start if descending else entry > start):
                yield entry

    def has_entry(self, table: Table, partition: int, entry: bytes) -> bool:
        return entry in self._entries(table, partition)

    def _entries(self, table: Table, partition: int) -> set[bytes]:
        indexes = indexing.Indexes(table.indexes, self.state_type(table))
        rows = self._rows[table.name][partition].items()
        return {entry for key, value in rows for entry in indexes.entries(key, value)}

    @asynccontextmanager
    async def changes(
        self, table: Table, after: Mapping[int, int | None], key: bytes | None = None
    ) -> AsyncIterator[Feed]:
        logs = {partition: self._changelogs[table.name, partition] for partition in after}
        begins = {p: len(logs[p]) - 1 if offset is None else offset for p, offset in after.items()}
        if any(begins[p] >= len(log) for p, log in logs.items()):
            raise LookupError("no such offset")
        yield Feed(begins, self._follow(table, logs, dict(begins), key))

    async def _follow(
        self,
        table: Table,
        logs: Mapping[int, list[tuple[bytes, bytes | None]]],
        told: dict[int, int],
        wanted: bytes | None,
    ) -> AsyncIterator[Sequence[Change]]:
        decode = self._codecs[table.name].decode
        while True:
            changes = [
                Change(partition, offset, key, None if value is None else decode(value))
                for partition, log in logs.items()
                for offset, (key, value) in enumerate(log)
                if offset > told[partition] and wanted in (None, key)
            ]
            if changes:
                told |= {change.partition: change.offset for change in changes}
                yield changes
            else:
                await self._waiting.progress()

    async def records(self, topic: Topic, partition: int, offsets: Sequence[int]) -> Sequence[bytes]:
        place = Place(topic.name, partition)
        log, begins = self.logs[place], self.removed.get(place, 0)
        if any(offset < begins for offset in offsets):
            raise LogBegins(begins)
        return [log[offset] for offset in offsets]

    def expect(self, aggregate_id: str, command_id: str, partition: int) -> asyncio.Future[Committed]:
        return self._waiting.expect(aggregate_id, command_id, partition)

    async def append(self, topic: Topic, key: bytes, value: bytes, partition: int | None = None) -> tuple[int, int]:
        appended = self._append(Record(topic.name, key, value, BY_KEY if partition is None else partition))
        return appended.partition, appended.offset

    def _append(self, record: Record) -> ReadRecord:
        """Handles the record, and then those it leads to, in the order of their logs."""
        appended = self._appended(record)
        unhandled = deque([appended])
        for _ in range(LONGEST):
            if not unhandled:
                return appended
            unhandled += self._handle(unhandled.popleft())
        raise RecursionError(
            f"more than {LONGEST:,} records follow from one of {record.topic}; fix: end the cycle of its policies, or "
            f"give its Service no Timer here, because timers do not wait in memory"
        )

    def _appended(self, record: Record) -> ReadRecord:
        partition = self.partition(record.key or b"") if record.partition == BY_KEY else record.partition
        log = self.logs[Place(record.topic, partition)]
        log.append(record.value or b"")
        return ReadRecord(
            record.topic, partition, len(log) - 1, record.key, record.value, int(brokers_clock.now() * 1000)
        )

    def _handle(self, appended: ReadRecord) -> Sequence[ReadRecord]:
        """The records that it leads to, which are not handled yet."""
        batch = Batch("dead")
        for processor in self._processors.get(appended.topic, ()):
            rows = processor.rows_of(partial(self._rows_in, batch, appended.partition))
            failure = processor.attempt(appended, rows, batch)
            while processor.is_spreading:
                failure = processor.attempt(appended, rows, batch)
            if failure is not None:
                batch.bury(appended, failure.code, failure.reason)
            self._handled += 1
        self._commit(batch)
        written = [self._appended(each) for each in batch.records]
        touched = {Place(each.topic, each.partition): each.offset for each in [appended, *written]}
        self._waiting.committed(batch, {**self.event_offsets(appended.partition), **touched})
        return written

    def _rows_in(self, batch: Batch, partition: int, table: Table) -> Rows[Any]:
        place = Place(table.name, partition)
        if place not in batch.rows:
            store = cast(RowStore, _Store(self._rows[table.name]))
            partitions = self.topology.partitions if table.keyed_by_id else None
            batch.rows[place] = Rows(table.name, store, partition, partitions, self._codecs[table.name], careful=True)
        return batch.rows[place]

    def _commit(self, batch: Batch) -> None:
        for (table, partition), rows in batch.rows.items():
            for key, value in rows.encoded().items():
                self._rows[table][partition].pop(key, None)
                if value is not None:
                    self._rows[table][partition][key] = value
                self._changelogs[table, partition].append((key, value))

    def ready(self) -> bool:
        return not self.refuses

    def status(self) -> Status:
        partitions = range(self.topology.partitions)
        return Status(
            service=self.topology.service,
            instance=self.settings.instance,
            url=self.settings.url,
            ready=self.ready(),
            idle=False,
            owners={t.name: dict.fromkeys(partitions, self.settings.url) for t in self.topology.shown_tables},
            replicas=[
                ReplicaStatus(
                    table=table.name,
                    partition=partition,
                    role="active",
                    restored=True,
                    position=len(self._changelogs[table.name, partition]),
                    target=0,
                    to_restore=0,
                    lag_records=0,
                    lag_seconds=0.0,
                )
                for table in self.topology.tables
                for partition in partitions
            ],
            sources=[
                SourceStatus(
                    topic=topic, partition=p, position=len(self.logs[Place(topic, p)]), lag_records=0, lag_seconds=0.0
                )
                for topic in self._processors
                for p in partitions
            ],
            handled=self._handled,
            commits=self._handled,
            aborts=0,
            waiting=self._waiting.for_rows,
        )


class StoredNode(MemoryNode):
    """A MemoryNode that reads a table's rows from a store on disk, as a worker does."""

    def __init__(self, topology: Topology, processors: Sequence[Processor], table: Table, folder: Path) -> None:
        super().__init__(topology, processors)
        self._table = table
        self._codec = self._codecs[table.name]
        self.store = RowStore(folder, table.name, table.indexes, state_type=self._codec.state_type)
        for partition in range(topology.partitions):
            self.store.open(partition, "changelog-id")

    def put(self, rows: Mapping[str, Row[Any]]) -> None:
        """By key."""
        homes: dict[int, dict[bytes, bytes | None]] = defaultdict(dict)
        for key, row in zip(rows, self._codec.encode_checked([*rows.values()]), strict=True):
            homes[self.partition(key.encode())][key.encode()] = row
        for partition, theirs in homes.items():
            self.store.apply(partition, theirs, None)

    def read(self, table: Table, partition: int, key: bytes) -> Row[Any] | None:
        assert table == self._table
        value = self.store.get(partition, key)
        return None if value is None else self._codec.decode(value)

    def keys(self, table: Table, partition: int, after: bytes = b"") -> Iterator[bytes]:
        return (key for key, _ in self.store.scan(partition, after))

    def keys_by(
        self, table: Table, partition: int, index: str, start: bytes = b"", descending: bool = False
    ) -> Iterator[bytes]:
        return self.store.keys_by(partition, index, start, descending)

    def has_entry(self, table: Table, partition: int, entry: bytes) -> bool:
        return self.store.has_entry(partition, entry)

    def close(self) -> None:
        self.store.close_all()


class _Store:
    """The part of a RowStore that a batch reads."""

    def __init__(self, rows: Mapping[int, Mapping[bytes, bytes]]) -> None:
        self._rows = rows

    def get(self, partition: int, key: bytes) -> bytes | None:
        return self._rows[partition].get(key)

    def keys_by(self, partition: int, index: str, start: bytes) -> Iterator[bytes]:
        return entries(self._rows[partition], index, start)
