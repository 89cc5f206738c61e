"""The batch engine: a partition's waiting records, the pure part for each, one transaction for all of it.

One task owns the consumer, so positions never move under it. Faust's group says which partitions are ours
(`assign`, `release`); the engine restores their tables from the changelogs, reads their sources from the committed
offsets on, and commits rows, events, dead letters and offsets together. After any failed commit it begins again
from what the broker has committed: the only truth it relies on.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError
from mode import Service

from shared.es.errors import NotReady
from shared.es.row import Row, RowCodec
from shared.failpoints import reached
from shared.kafka.offsets import Offsets, OffsetsUnknown
from shared.kafka.transactions import (
    Partition,
    Record,
    TransactionAborted,
    TransactionalProducer,
    TransactionRefused,
)
from shared.parking import REASON_CHARACTERS, Failure, Parked, Wish
from shared.positions import Decided
from shared.streams.batch import Batch, Rows
from shared.streams.parking import CODEC, Parking
from shared.streams.processors import Processor
from shared.streams.store import RowStore, StoreFailed
from shared.topology import Table, Topology

log = structlog.get_logger(__name__)

POLL_RECORDS = 500  # more at once, and Python's garbage collector stalls the HTTP side
RESTORE_RECORDS = 5_000
SLICE_RECORDS = 200  # the HTTP side gets its turn after so many
POLL_WAIT_MS = 100
REREAD_MS = 5_000
RETRY_PAUSE_S = 0.5
MAX_RETRY_PAUSE_S = 5.0
COLLECT_AFTER = 50_000  # objects made, and not freed by their count: a collection then takes a few milliseconds


class SourceGone(Exception):
    """Retention removed records this group has not read yet.

    Operator action: restore them from the archive, or accept the loss by resetting the group's offsets.
    """


class NotRebuilt(Exception):
    """The tables of this version were not filled from history yet: to decide without them would repeat history.

    Operator action: run `rebuild` for this service, then start the worker again.
    """


@dataclass(frozen=True, slots=True)
class Assignment:
    """The group's word on what is ours, and the membership that the broker will check."""

    active: frozenset[TopicPartition]
    standby: frozenset[TopicPartition]
    member: bytes


@dataclass(slots=True)
class Source:
    """One partition of a topic being processed.

    position: the next offset to handle. end: the last end seen. handled_until: timestamp of the last record
    handled here. due_at: when a delayed source goes on. Times in seconds since the epoch.
    """

    partition: TopicPartition
    processors: Sequence[Processor]
    position: int
    end: int
    handled_until: float = 0.0
    due_at: float = 0.0

    @property
    def delay_s(self) -> float:
        return self.processors[0].delay_s if self.processors else 0.0


@dataclass(slots=True)
class Replica:
    """One partition of a table held here. It is restored once `position` has reached `target`.

    Offsets are of the changelog: position is the next to apply, target the end when the partition was taken over,
    end the last end seen. applied_until: timestamp of the last record applied, in seconds since the epoch.
    """

    changelog: TopicPartition
    store: RowStore
    active: bool
    position: int
    target: int
    end: int
    applied_until: float = 0.0
    restored: bool = False
    began: float = field(default_factory=time.monotonic)
    start: int = 0


class Engine(Service):
    """One per worker process."""

    def __init__(
        self,
        topology: Topology,
        processors: Sequence[Processor],
        stores: Mapping[str, RowStore],
        consumer: Callable[[], AIOKafkaConsumer],
        producer: TransactionalProducer,
        offsets: Offsets,
        alive: Callable[[], None],
        lease_s: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topology = topology
        self.sources: dict[TopicPartition, Source] = {}
        self.replicas: dict[TopicPartition, Replica] = {}
        self.assignment: Assignment | None = None
        self.handled = 0
        self.commits = 0
        self.aborts = 0
        self._stores = stores
        self._new_consumer = consumer
        self._consumer: AIOKafkaConsumer | None = None
        self._producer = producer
        self._offsets = offsets
        self._alive = alive
        self._lease_s = lease_s
        self._lease_until = 0.0
        self._left = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._waiters: dict[tuple[str, str], list[asyncio.Future[Decided]]] = {}
        self._watchers: dict[tuple[str, bytes], set[asyncio.Event]] = {}
        self._progress = asyncio.Event()
        self._reached: dict[Partition, int] = {}  # the next offset of each source, as of the last commit
        self._inbox: asyncio.Queue[tuple[Assignment | None, asyncio.Future[None]]] = asyncio.Queue()
        self._processors: dict[str, list[Processor]] = {}
        for processor in processors:
            self._processors.setdefault(processor.source.name, []).append(processor)
        self._processors[topology.parking.name] = []  # the engine itself does what operators want
        self._tables = {topology.changelog(table).name: table for table in topology.all_tables()}
        mixed = [name for name, found in self._processors.items() if len({p.delay_s for p in found}) > 1]
        if mixed:
            raise ValueError(f"a delayed source can't have other processors: {mixed}")
        names = [processor.name for processor in processors]
        if len(set(names)) < len(names):
            raise ValueError(f"two processors have one name: {sorted(names)}")
        self._codecs: dict[str, RowCodec[Any]] = {topology.parked.name: CODEC}
        self._codecs |= {p.table.name: p.codec for p in processors if p.table is not None and p.codec is not None}
        self._parked: dict[int, set[str]] = {}  # by partition: the ids of the parked keys
        self._dead_letters = f"{topology.service}.dead.v1"
        self._batch = Batch(self._dead_letters)
        self._failures = 0
        self._failed_stores: list[StoreFailed] = []

    # What the group tells us. Both are called on the worker's loop.

    async def release(self) -> None:
        """Commit what is done and let go of every partition. Returns when no more is written."""
        await self._post(None)

    async def assign(self, assignment: Assignment) -> None:
        """Take these partitions over; restoring them goes on after the return."""
        await self._post(assignment)

    async def leave(self) -> None:
        """Before this worker leaves the group: answer nothing any more, so that the next owner may."""
        self._left = True
        for waiter in [waiter for waiters in self._waiters.values() for waiter in waiters]:
            waiter.set_exception(TimeoutError("the worker stops; the next owner decides"))
        self._wake_all()
        await self.release()

    async def _post(self, wish: Assignment | None) -> None:
        if self.should_stop or not self.started:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((wish, done))
        await done

    def extend_lease(self, sent: float) -> None:
        """The group answered a heartbeat sent at `sent` (monotonic): no other worker owns our partitions yet."""
        self._lease_until = sent + self._lease_s

    # What the HTTP side asks.

    def serves(self, table: Table, partition: int) -> bool:
        """Whether rows read here now are the latest. A worker that was frozen is out of its lease when it wakes."""
        replica = self.replica(table, partition)
        if replica is None or self._left:
            return False
        return replica.active and replica.restored and time.monotonic() < self._lease_until

    def replica(self, table: Table, partition: int) -> Replica | None:
        return self.replicas.get(TopicPartition(self.topology.changelog(table).name, partition))

    def codec(self, table: Table) -> RowCodec[Any]:
        return self._codecs[table.name]

    def read(self, table: Table, partition: int, key: bytes) -> Row[Any] | None:
        """The committed row of `key`. The partition must be held here."""
        try:
            value = self._stores[table.name].get(partition, key)
        except StoreFailed as failure:
            self._failed_stores.append(failure)
            raise NotReady("the partition is restored from its changelog") from failure
        return None if value is None else self._codecs[table.name].decode(value)

    def scan(self, table: Table, partition: int, after: bytes = b"") -> Iterator[tuple[bytes, Row[Any]]]:
        """Committed rows in key order, beginning behind `after`. The partition must be held here."""
        decode = self._codecs[table.name].decode
        for key, value in self._stores[table.name].scan(partition, after):
            yield key, decode(value)

    def keys_by(
        self, table: Table, partition: int, field: str, start: bytes = b"", descending: bool = False
    ) -> Iterator[bytes]:
        """Entries of an index, in order, beginning behind `start`. The partition must be held here."""
        return self._stores[table.name].keys_by(partition, field, start, descending)

    def position(self, table: Table, partition: int) -> int:
        """Offset of the last source record that rows read here include; -1 while there is none."""
        return self._reached.get((table.source.name, partition), 0) - 1

    async def progress(self) -> None:
        """Returns after the next commit, or when partitions move."""
        await self._progress.wait()

    def expect(self, aggregate_id: str, command_id: str) -> asyncio.Future[Decided]:
        """Completes when a command with these ids is decided and committed here. Ask before sending it.

        Raises TimeoutError when the worker stops first.
        """
        waiter: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
        if self._left:
            waiter.set_exception(TimeoutError("the worker stops"))
        key = (aggregate_id, command_id)
        self._waiters.setdefault(key, []).append(waiter)
        waiter.add_done_callback(lambda _: self._forget(key, waiter))
        return waiter

    def _forget(self, key: tuple[str, str], waiter: asyncio.Future[Decided]) -> None:
        waiters = self._waiters.get(key, [])
        with suppress(ValueError):
            waiters.remove(waiter)
        if not waiters:
            self._waiters.pop(key, None)

    @contextmanager
    def watch(self, table: Table, key: bytes) -> Iterator[asyncio.Event]:
        """An event that is set after each commit that changed the row of `key` here."""
        where = (self.topology.changelog(table).name, key)
        changed = asyncio.Event()
        self._watchers.setdefault(where, set()).add(changed)
        try:
            yield changed
        finally:
            self._watchers[where].discard(changed)
            if not self._watchers[where]:
                del self._watchers[where]

    @property
    def waiting(self) -> int:
        """How many reads wait for a row to change."""
        return sum(map(len, self._watchers.values()))

    def lag(self, replica: Replica) -> int:
        """How many changelog records, markers included, a replica held here is known to be behind."""
        return 0 if replica.active and replica.restored else max(0, replica.end - replica.position)

    def source_lag(self, source: Source) -> int:
        """How many records of the source, transaction markers included, are not handled yet."""
        if self._consumer is not None and source.partition in self._consumer.assignment():
            source.end = max(source.end, self._consumer.highwater(source.partition) or 0)
        return max(0, source.end - source.position)

    # The one task.

    @Service.task
    async def _run(self) -> None:
        try:
            while not self.should_stop:
                if self.assignment is None or not self._inbox.empty():
                    await self._obey()
                else:
                    self._alive()
                    await self._turn_or_heal()
        except (TransactionRefused, SourceGone, NotRebuilt) as refusal:
            log.critical("the worker stops: going on can't help", reason=str(refusal))
            raise

    async def _obey(self) -> None:
        try:
            wish, done = await asyncio.wait_for(self._inbox.get(), timeout=1.0)
        except TimeoutError:
            self._alive()
            return
        try:
            await self._flush()
            self.assignment = wish
            if wish is None:
                self._suspend()
            else:
                await self._take_over(wish)
        finally:
            if not done.done():
                done.set_result(None)

    async def _turn_or_heal(self) -> None:
        try:
            for failure in self._failed_stores:
                raise failure
            await self._turn()
        except StoreFailed as failure:
            await self._heal(failure)

    async def _turn(self) -> None:
        if not self.sources and not self.replicas:
            await asyncio.sleep(POLL_WAIT_MS / 1000)  # one worker more than there are partitions
            return
        assert self._consumer is not None
        self._wake_due_sources()
        restoring = any(not replica.restored for replica in self.replicas.values())
        limit = RESTORE_RECORDS if restoring else POLL_RECORDS
        fetched = await self._consumer.getmany(timeout_ms=POLL_WAIT_MS, max_records=limit)
        handled = 0
        for partition, records in fetched.items():
            if partition in self.replicas:
                self._apply(self.replicas[partition], records)
            elif partition in self.sources:
                handled += await self._process(self.sources[partition], records)
            if not self._inbox.empty():
                return  # everything fetched but not handled is read again after the take-over
        if restoring or self.assignment_has_standbys:
            await self._advance_replicas()
        if not fetched and not self._batch:
            await self._advance_sources()
        if self._batch and (handled < POLL_RECORDS or self._batch.full):
            await self._flush()

    @property
    def assignment_has_standbys(self) -> bool:
        return self.assignment is not None and bool(self.assignment.standby)

    async def _process(self, source: Source, records: Sequence[ConsumerRecord]) -> int:
        partition = source.partition
        if partition.topic == self.topology.parking.name:
            return await self._operate(source, records)
        if source.delay_s:
            records = self._due(source, records)
        parked = self._parking(partition.partition)
        for start in range(0, len(records), SLICE_RECORDS):
            part = records[start : start + SLICE_RECORDS]
            for processor in source.processors:
                processor.process(part, self._rows(processor, partition.partition), self._batch, parked)
            source.position = part[-1].offset + 1
            source.handled_until = part[-1].timestamp / 1000
            self._batch.advance(partition, source.position, len(part))
            await asyncio.sleep(0)
        return len(records)

    def _due(self, source: Source, records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
        """The records that are old enough; the consumer goes back to the first that isn't, and rests until it is."""
        assert self._consumer is not None
        now = time.time()
        for index, record in enumerate(records):
            due_at = record.timestamp / 1000 + source.delay_s
            if due_at > now:
                source.due_at = due_at
                self._consumer.seek(source.partition, record.offset)
                self._consumer.pause(source.partition)
                return records[:index]
        return records

    def _wake_due_sources(self) -> None:
        assert self._consumer is not None
        now = time.time()
        for tp, source in self.sources.items():
            if source.due_at and source.due_at <= now:
                source.due_at = 0.0
                self._consumer.resume(tp)

    def _rows(self, processor: Processor, partition: int) -> Rows | None:
        if processor.table is None:
            return None
        return self._table_rows(processor.table, partition, self.topology.partitions)

    def _table_rows(self, table: Table, partition: int, partitions: int | None) -> Rows:
        changelog = self.topology.changelog(table).name
        rows = self._batch.rows.get((changelog, partition))
        if rows is None:
            rows = Rows(changelog, self._stores[table.name], partition, partitions, self._codecs[table.name])
            self._batch.rows[changelog, partition] = rows
        return rows

    # Parked records, and what operators want done with them.

    def _parking(self, partition: int) -> Parking:
        table = self.topology.parked
        if partition not in self._parked:
            self._parked[partition] = {key.decode() for key, _ in self._stores[table.name].scan(partition)}
        return Parking(self._table_rows(table, partition, partitions=None), self._parked[partition])

    async def _operate(self, source: Source, records: Sequence[ConsumerRecord]) -> int:
        for record in records:
            try:
                wish = Wish.model_validate_json(record.value or b"")
            except ValueError as error:
                self._batch.bury(record, "wish.bad", str(error)[:REASON_CHARACTERS])
            else:
                await self._fulfil(wish, self._parking(record.partition))
            source.position = record.offset + 1
            self._batch.advance(source.partition, source.position, 1)
        return len(records)

    async def _fulfil(self, wish: Wish, place: Parking) -> None:
        parked = place.get(wish.id)
        if parked is None:
            return  # done before
        if wish.action == "retry":
            place.keep(wish.id, self._retried(parked, await self._reread(parked)))
        elif wish.offset == parked.offset:
            log.warning("a parked record is discarded", id=wish.id, offset=wish.offset, reason=wish.reason)
            place.keep(wish.id, parked.without_first())

    def _retried(self, parked: Parked, records: Mapping[int, ConsumerRecord]) -> Parked | None:
        """What stays parked when all are handled in order, up to the first that fails again."""
        processor = next((p for p in self._processors[parked.topic] if p.name == parked.processor), None)
        left: Parked | None = parked
        while left is not None:
            record = records.get(left.offset)
            if processor is None or record is None:
                what = "the processor" if processor is None else "the record"
                return left.failed(Failure("gone", f"{what} is no longer there"))
            failure = processor.attempt(record, self._rows(processor, left.partition), self._batch)
            if failure is not None:
                return left.failed(failure)
            left = left.without_first()
        return None

    async def _reread(self, parked: Parked) -> dict[int, ConsumerRecord]:
        """The parked records from the log, by offset; those that retention removed are missing."""
        tp = TopicPartition(parked.topic, parked.partition)
        found: dict[int, ConsumerRecord] = {}
        reader = self._new_consumer()
        await reader.start()
        try:
            reader.assign([tp])
            for offset in parked.offsets:
                reader.seek(tp, offset)
                fetched = await reader.getmany(tp, timeout_ms=REREAD_MS, max_records=1)
                found |= {record.offset: record for record in fetched.get(tp, ())}
        except OffsetOutOfRangeError as error:
            log.warning("parked records are no longer in the log", topic=tp.topic, reason=str(error))
        finally:
            await reader.stop()
        return found

    async def _flush(self) -> None:
        """Commit the batch, then the store, then answer; or drop it and begin again from the committed offsets."""
        batch, self._batch = self._batch, Batch(self._dead_letters)
        if not batch or self.assignment is None:
            return
        try:
            written = await self._in_thread(self._commit, batch, self.assignment.member)
        except TransactionAborted as aborted:
            self.aborts += 1
            await self._begin_again(aborted)
            return
        except StoreFailed as failure:
            await self._heal(failure)
            return
        self._failures = 0
        self.commits += 1
        self.handled += batch.count
        self._advance(batch, written)
        self._answer(batch, written)

    def _commit(self, batch: Batch, member: bytes) -> Mapping[Partition, int]:
        encoded = {partition: rows.encoded() for partition, rows in batch.rows.items() if rows.changed}
        changes = [
            Record(topic, key, value, partition)
            for (topic, partition), rows in encoded.items()
            for key, value in rows.items()
        ]
        written = self._producer.commit(batch.records + changes, batch.offsets, member)
        reached("after_commit")
        for partition, rows in encoded.items():
            batch.rows[partition].store.apply(partition[1], rows, written[partition])
        reached("after_store")
        return written

    def _advance(self, batch: Batch, written: Mapping[Partition, int]) -> None:
        self._reached |= batch.offsets
        for partition, rows in batch.rows.items():
            if rows.changed:  # behind our last record lies our commit marker: nobody else writes this changelog
                self.replicas[TopicPartition(*partition)].position = written[partition] + 2
        self._tell_progress()

    def _tell_progress(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    def _wake_all(self) -> None:
        """Whoever waits for a row or a position looks again: it may be another worker's now."""
        self._tell_progress()
        for watchers in self._watchers.values():
            for changed in watchers:
                changed.set()

    def _answer(self, batch: Batch, written: Mapping[Partition, int]) -> None:
        positions = {**written, **{partition: position - 1 for partition, position in batch.offsets.items()}}
        if self._waiters:
            for aggregate_id, outcome in batch.outcomes:
                for waiter in self._waiters.get((aggregate_id, outcome.command_id), ()):
                    if not waiter.done():
                        waiter.set_result(Decided(outcome, positions))
        if self._watchers:
            for (changelog, _), rows in batch.rows.items():
                for key in rows.changed.keys() & {key for topic, key in self._watchers if topic == changelog}:
                    for changed in self._watchers[changelog, key]:
                        changed.set()

    async def _begin_again(self, aborted: TransactionAborted) -> None:
        self._failures += 1
        pause_s = min(RETRY_PAUSE_S * 2 ** (self._failures - 1), MAX_RETRY_PAUSE_S)
        log.warning("batch not committed, begins again", reason=str(aborted), pause_s=pause_s)
        if aborted.lost_membership:
            self.assignment = None  # the group will assign anew
            self._suspend()
            self.replicas.clear()
            self._wake_all()
        elif self.assignment is not None:
            await asyncio.sleep(pause_s)
            await self._take_over(self.assignment)

    async def _heal(self, failure: StoreFailed) -> None:
        """Drop the broken copy and what is not committed; a copy that breaks while it is restored stops the worker."""
        table = next(table for table in self.topology.all_tables() if self._stores[table.name] is failure.store)
        replica = self.replica(table, failure.partition)
        if replica is None or not replica.restored or self.assignment is None:
            raise failure
        log.error("a store failed, wiped; the changelog restores it", store=str(failure))
        self._failed_stores.clear()
        failure.store.wipe(failure.partition)
        del self.replicas[replica.changelog]  # or it would still count as restored
        await self._take_over(self.assignment)

    # Taking over and restoring.

    def _suspend(self) -> None:
        """Process nothing. What is restored stays readable: nobody writes it before the group assigns anew."""
        self._batch = Batch(self._dead_letters)
        self._parked.clear()
        self.sources.clear()
        if self._consumer is not None:
            self._consumer.unsubscribe()

    async def _take_over(self, assignment: Assignment) -> None:
        """Committed offsets first: once they are stable no predecessor can write, and the changelogs are final."""
        self._suspend()
        for tp, replica in self.replicas.items():
            replica.active = replica.active and tp in assignment.active  # at once: the others' new owners may write
        self._wake_all()
        actives = [tp for tp in assignment.active if tp.topic in self._tables]
        standbys = [tp for tp in assignment.standby if tp.topic in self._tables and tp not in assignment.active]
        sources = [tp for tp in assignment.active if tp.topic in self._processors]
        changelogs = actives + standbys
        committed = await self._ask(self._offsets.committed, self.topology.group, sources)
        starts = await self._ask(self._offsets.starts, sources + changelogs)
        ends = await self._ask(self._offsets.ends, sources + changelogs)
        for tp in self.replicas.keys() - set(changelogs):
            self.replicas.pop(tp).store.close(tp.partition)
        for tp in changelogs:
            self.replicas[tp] = self._open_replica(tp, tp in assignment.active, starts[tp], ends[tp])
        for tp in sources:
            if committed[tp] is None and self._feeds_next_version(tp):
                raise NotRebuilt(f"{self.topology.group} has no position in {tp.topic}/{tp.partition}")
            position = _first_position(tp, committed[tp], starts[tp])
            self.sources[tp] = Source(tp, self._processors[tp.topic], position, ends[tp])
        self._reached = {tp: source.position for tp, source in self.sources.items()}
        await self._follow()
        log.info(
            "took over",
            sources=len(sources),
            tables=len(actives),
            standbys=len(standbys),
            to_restore=sum(max(0, r.target - r.position) for r in self.replicas.values() if r.active),
        )

    def _feeds_next_version(self, source: TopicPartition) -> bool:
        return self.topology.version > 1 and any(p.table is not None for p in self._processors[source.topic])

    def _open_replica(self, tp: TopicPartition, active: bool, start: int, end: int) -> Replica:
        store = self._stores[self._tables[tp.topic].name]
        position = store.open(tp.partition) + 1
        held = self.replicas.get(tp)
        if held is not None and held.active and held.restored and held.position == end:
            position = end  # still ours, and untouched
        if position > end or 0 < position <= start:  # at the start, too: its rows lie before it, so nowhere
            log.warning(
                "local store is not of this changelog, wiped",
                changelog=tp,
                had=position,
                start=start,
                end=end,
            )
            store.wipe(tp.partition)
            position = store.open(tp.partition) + 1
        position = max(position, start)
        return Replica(tp, store, active, position, end, end, restored=position >= end, start=position)

    async def _follow(self) -> None:
        """Point the consumer at everything held: sources wait until the tables beside them are restored."""
        positions = {tp: source.position for tp, source in self.sources.items()}
        positions |= {tp: replica.position for tp, replica in self.replicas.items()}
        if not positions:
            return
        if self._consumer is None:
            self._consumer = self._new_consumer()
            await self._consumer.start()
        self._consumer.assign(list(positions))
        for tp, position in positions.items():
            self._consumer.seek(tp, position)
        self._consumer.pause(*self._at_rest())

    def _at_rest(self) -> list[TopicPartition]:
        """Sources beside an unrestored table, and changelogs that only we write now."""
        restoring = {tp.partition for tp, replica in self.replicas.items() if replica.active and not replica.restored}
        sources = [tp for tp, source in self.sources.items() if tp.partition in restoring or source.due_at]
        return sources + [tp for tp, replica in self.replicas.items() if replica.active and replica.restored]

    def _apply(self, replica: Replica, records: Sequence[ConsumerRecord]) -> None:
        rows = {record.key: record.value for record in records}
        replica.store.apply(replica.changelog.partition, rows, records[-1].offset)
        replica.position = records[-1].offset + 1
        replica.applied_until = records[-1].timestamp / 1000

    async def _advance_sources(self) -> None:
        """Nothing waits: whatever lies before the consumer's position and is no record needs no handling."""
        assert self._consumer is not None
        for tp in self.sources.keys() - self._consumer.paused():
            self.sources[tp].position = max(self.sources[tp].position, await self._consumer.position(tp))

    async def _advance_replicas(self) -> None:
        """The consumer's position also passes what is no record: transaction markers, aborted and compacted ones."""
        assert self._consumer is not None
        for tp, replica in self.replicas.items():
            if replica.active and replica.restored:
                continue
            replica.position = max(replica.position, await self._consumer.position(tp))
            replica.end = max(replica.end, self._consumer.highwater(tp) or 0)
            if not replica.restored and replica.position >= replica.target:
                self._restored(replica)

    def _restored(self, replica: Replica) -> None:
        assert self._consumer is not None
        replica.restored = True
        took_s = time.monotonic() - replica.began
        log.info(
            "restored",
            changelog=replica.changelog,
            records=replica.target - replica.start,
            took_s=round(took_s, 2),
        )
        at_rest = set(self._at_rest())
        self._consumer.pause(*at_rest)
        self._consumer.resume(*(set(self._consumer.assignment()) - at_rest))

    async def _ask(self, question: Callable[..., Any], *args: Any) -> Any:
        """A broker that is away or electing leaders is asked again until it answers or we are told to stop."""
        pause_s = RETRY_PAUSE_S
        while True:
            try:
                return await self._in_thread(question, *args)
            except OffsetsUnknown as failure:
                if self.should_stop:
                    raise
                log.warning("the broker does not answer, asked again", question=question.__name__, reason=str(failure))
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, MAX_RETRY_PAUSE_S)

    async def _in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def on_start(self) -> None:
        # after every 700 new objects, Python's default, it would search a batch's rows for cycles they can't have
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)

    async def on_stop(self) -> None:
        if self._consumer is not None:
            await self._consumer.stop()
        self._thread.shutdown()


def _first_position(tp: TopicPartition, committed: int | None, start: int) -> int:
    if committed is not None and committed < start:
        raise SourceGone(
            f"{tp.topic}/{tp.partition}: offsets {committed} to {start - 1} were removed before they were read"
        )
    return start if committed is None else committed
