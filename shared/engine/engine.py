"""The batch engine: runs the pure part on every waiting record of its partitions and commits the results together.

A single task owns the reader, so positions never move under it. Faust's consumer group says which partitions are ours
(`assign`, `release`); the engine restores their tables from the changelogs, reads their sources from the committed
offsets, and commits rows, events, dead letters and offsets in one transaction. After a failed commit it starts again
from what the broker has committed, the only state it trusts.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from mode import Service

from shared.domain.errors import REASON_MAX_CHARS, RowUnreadable
from shared.domain.row import TOO_LARGE
from shared.engine.answers import Waiting
from shared.engine.batch import FULL_RECORDS, Batch, Handling, Refusal
from shared.engine.guards import (
    Failures,
    GapGuard,
    GrowthGuard,
    OpenTransactions,
    Standstill,
    Told,
    TopicGone,
    TopicGuard,
    Watchdog,
)
from shared.engine.lease import Lease
from shared.engine.processors import Processor
from shared.engine.retries import Wishes
from shared.engine.sources import Source, SourceGone, first_position
from shared.engine.versions import MixedReleases, VersionGuard, VersionRefused
from shared.engine.wiring import by_source, codecs_of
from shared.kafka.ends import LeaderEnds
from shared.kafka.offsets import AccessRefused, Offsets, OffsetsUnknown
from shared.kafka.reader import OffsetGone, Reader, ReadRecord, ReadRefused
from shared.kafka.transactions import (
    Record,
    RecordTooLarge,
    TransactionAborted,
    TransactionalProducer,
    TransactionRefused,
)
from shared.operations.provision import TopologyMismatch, require_partitions
from shared.parking.parked import Failure, Wish
from shared.parking.parking import Parking
from shared.runtime import failpoints
from shared.runtime.clock import brokers_clock, elapsed_s
from shared.runtime.positions import Partition
from shared.tables.replicas import Replica, Replicas
from shared.tables.rows import Rows, RowUnwritable
from shared.tables.store import RowStore, StoreFailed
from shared.topology.topics import Table, Topology

log = structlog.get_logger(__name__)

POLL_RECORDS = 500  # with more, Python's garbage collector stalls the HTTP side
SLICE_RECORDS = 50  # handled without a break: about a millisecond's work
SLICE_S = 0.002  # then the HTTP side gets its turns
HTTP_TURNS = 3  # of the event loop: to read a request, to answer it, and one for a request that came meanwhile
SWITCH_S = 0.0005  # how soon the commit's thread hands back the interpreter; Python's default is 5 ms, each time
POLL_WAIT_MS = 100
DUE_WAIT_MS = 5  # while a batch waits for its commit
PAUSE = 1.0  # between commits, in durations of the last one
RETRY_PAUSE_S = 0.5
MAX_RETRY_PAUSE_S = 5.0
QUIET_S = 5.0
MEASURE_S = 1.0  # between two questions for the ends of what standbys and restores follow
LAG_OF_S = 1.0  # how long before a read the brokers may have been asked for the end that its lag is counted from
LAG_WITHIN_S = 2.0  # then the read goes to a worker that knows more, which has to answer within peers.ANSWER_S
WATCH_S = 10.0
COLLECT_AFTER = 50_000  # live allocations between two garbage collections, which then take a few milliseconds each
TIMES_REFUSED = 2  # of a command with an outcome that says so, and without; of a retry with many records, and with one
WISHES = ""  # in the place of a processor's name


Encoded = Mapping[Partition, Mapping[bytes, bytes | None]]
"""Encoded rows by key (None deletes), by changelog partition."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions that the group gave to this worker, and the membership that the broker checks at each commit.

    member: made of `generation` and `member_id`.
    """

    active: frozenset[TopicPartition]
    standby: frozenset[TopicPartition]
    member: bytes
    generation: int
    member_id: str


class WorkCancelled(Exception):
    """The engine's task was cancelled, and nobody stops the worker.

    Operator action: start the worker again. If it happens again, the log's traceback says what was cancelled.
    """


class Engine(Service):
    """One per worker process. replicas: its rows, for reading. waiting: notifies callers of its commits.

    sign: commits a note for the group member, without a position; blocking, raises OffsetsUnknown.
    """

    def __init__(
        self,
        topology: Topology,
        processors: Sequence[Processor],
        stores: Mapping[str, RowStore],
        reader: Reader,
        new_consumer: Callable[[], AIOKafkaConsumer],
        producer: TransactionalProducer,
        offsets: Offsets,
        alive: Callable[[], None],
        sign: Callable[[Partition, str], None],
        lease_s: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topology = topology
        self.sources: dict[TopicPartition, Source] = {}
        self.replicas = Replicas(topology, stores, codecs_of(topology, processors))
        self.waiting = Waiting()
        self.assignment: Assignment | None = None
        self.handled = 0
        self.commits = 0
        self.aborts = 0
        self._processors = by_source(topology, processors)
        self._version = VersionGuard(topology, self._processors, offsets, self._ask)
        self._wishes = Wishes(topology, self.sources, new_consumer)
        self._reader = reader
        self._producer = producer
        self._offsets = offsets
        self._alive = alive
        self._sign = sign
        self._lease = Lease(lease_s)
        self._clock = brokers_clock
        self._membership: tuple[str, int] = ("", 0)  # our member id, and the last generation that we joined
        self._has_left = False
        self._is_idle = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._gap_guard = GapGuard({})
        self._growth_guard = GrowthGuard()
        self._topic_guard = TopicGuard()
        self._topic_ids: Mapping[str, str] = {}  # as of the last take-over
        self._unchecked: dict[int, list[TopicPartition]] = {}  # sources without a position, until rows are restored
        self._held_back: Sequence[Told] = ()
        self._out_of_sync: Sequence[Told] = ()
        self._uncommitted = Failures()
        self._unanswered = Failures()
        self._turns = 0
        self._own_topics = {*self._processors, *map(self.replicas.changelog, topology.all_tables())}
        self._reached: dict[Partition, int] = {}  # the next offset of each source, as of the last commit
        self._skipped: dict[Partition, int] = {}  # positions past offsets without a record, not in a batch yet
        self._facts: dict[Partition, int] = {}  # the last offset of our own events, as of the last commit
        self._committed_at = 0.0
        self._inbox: asyncio.Queue[tuple[Assignment | None, asyncio.Future[None]]] = asyncio.Queue()
        self._parked: dict[int, set[str]] = {}  # by partition: the ids of the parked keys
        self._dead_letters = topology.dead_letters.name
        self._refused: dict[Handling, Refusal] = {}  # what leads to records that are too large
        self._batch = Batch(self._dead_letters, self._refused)
        self._pending = Batch(self._dead_letters)  # the previous batch, while it is being committed
        self._committing: asyncio.Task[None] | None = None
        self._ends = LeaderEnds(new_consumer)
        self._learning: dict[int | None, asyncio.Future[None]] = {}  # by leader: the question where its partitions end
        self._failures = 0
        self._limit = POLL_RECORDS  # of records in a batch
        self._careful: set[Partition] = set()  # changelogs for which a row could not be written
        self._may_be_pending = True  # offsets that were aborted under our name: see `forget_pending`
        self._slice_ends = 0.0
        self._pause_ends = 0.0

    # Called by the group's consumer, on the worker's loop.

    async def release(self) -> None:
        """Commit finished work and give up every partition. Returns once nothing more will be written."""
        await self._submit(None)

    async def assign(self, assignment: Assignment) -> None:
        """Take over these partitions; their restore continues after this returns."""
        await self._submit(assignment)

    async def leave(self) -> None:
        """Before this worker leaves the group: stop answering requests, so that the next owner may, and release all."""
        self._has_left = True
        self.waiting.end()
        await self.release()

    async def _submit(self, assignment: Assignment | None) -> None:
        if self.should_stop or not self.started:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((assignment, done))
        await done

    def joined(self, assignment: Assignment, sent: float) -> None:
        """The group has counted this worker as a member since `sent` (`elapsed_s`); `assign` follows later.

        If this worker missed a generation, or got a new member id, another worker may have owned and written its
        partitions, so it drops its replicas.
        """
        member_id, generation = self._membership
        if assignment.member_id != member_id or assignment.generation not in (generation, generation + 1):
            self._drop_replicas()
        is_new = self._membership != (assignment.member_id, assignment.generation)
        self._membership = assignment.member_id, assignment.generation
        self._serve_only(assignment.active)
        if is_new:  # and so in the group's log; what it has given before, a superseded coordinator gives from memory
            self.extend_lease(sent)

    def extend_lease(self, sent: float) -> None:
        """The group's log has this worker as a member that was there at `sent` (`elapsed_s`): no other worker owns our
        partitions yet.
        """
        self._lease.extend(sent)

    def end_lease(self) -> None:
        """The group has gone on without this worker: rows read here may be old until it is a member again."""
        self._lease.end()

    # Asked by the HTTP side.

    def serves(self, table: Table, partition: int) -> bool:
        """Whether rows read here now are the latest."""
        replica = self.replicas.of(table, partition)
        return replica is not None and replica.ours and self.in_lease

    async def standby_lag(self, table: Table, partition: int) -> int | None:
        """How many records the standby held here is behind those that its changelog had LAG_OF_S ago.

        Asks the brokers if they were not asked since. None when there is no standby, or they do not answer.
        """
        since = elapsed_s() - LAG_OF_S
        with suppress(TimeoutError):
            async with asyncio.timeout(LAG_WITHIN_S):
                for _ in range(2):  # what is asked already may have been asked too early
                    if (replica := self._standby(table, partition)) and replica.end_known_at < since:
                        await asyncio.shield(self._ends_asked(self._ends.leader(replica.changelog)))
        replica = self._standby(table, partition)
        return replica.lag if replica is not None and replica.end_known_at >= since else None

    def _standby(self, table: Table, partition: int) -> Replica | None:
        replica = self.replicas.of(table, partition)
        return None if replica is None or replica.ours or not self.in_lease else replica

    @property
    def in_lease(self) -> bool:
        """Whether the group surely counts this worker as a member: not after the worker was frozen or suspended."""
        return not self._has_left and self._lease.holds

    def position(self, table: Table, partition: int) -> int:
        """Offset of the last source record that rows read here include; -1 while there is none."""
        return self._reached.get((table.source.name, partition), 0) - 1

    def facts(self, partition: int) -> Mapping[Partition, int]:
        """The last offset of this service's events in `partition`: rows read here include no later ones."""
        return {place: offset for place, offset in self._facts.items() if place[1] == partition}

    def source_lag(self, source: Source) -> int:
        """How many records of the source, transaction markers included, are not handled yet."""
        if source.partition in self._reader.assignment():
            source.end = max(source.end, self._reader.highwater(source.partition))
        return max(0, source.end - source.position)

    @property
    def troubles(self) -> Sequence[Told]:
        """What has kept records from being handled for a while, and is not to be mended by a new start."""
        now = time.monotonic()
        held_back = [each for each in self._held_back if each.place in self.sources]
        uncommitted = self._uncommitted.told(now)
        return [*self._unanswered.told(now), *uncommitted, *(self._out_of_sync if uncommitted else ()), *held_back]

    # The one task.

    @Service.task
    async def _run(self) -> None:
        try:
            while not self.should_stop:
                self._turns += 1
                if self.assignment is None or not self._inbox.empty():
                    await self._handle_rebalance()
                else:
                    self._alive()
                    await self._turn_or_heal()
        except (
            AccessRefused,
            TransactionRefused,
            TopologyMismatch,
            ReadRefused,
            SourceGone,
            VersionRefused,
            StoreFailed,
            RowUnreadable,
            TopicGone,
        ) as refusal:
            log.critical("the worker stops: trying again can't help", reason=str(refusal))
            raise
        except asyncio.CancelledError as cancelled:
            if self.should_stop:
                raise
            # mode would let this task end without a word, and the worker would stay in its group and handle nothing
            log.critical("the worker stops: its work was cancelled, and nobody stops it")
            raise WorkCancelled("the engine was cancelled while its worker runs") from cancelled
        finally:
            while not self._inbox.empty():  # their callers would wait for ever
                self._answer(self._inbox.get_nowait()[1])

    async def _handle_rebalance(self) -> None:
        # the assignment stays in the inbox until then: a commit that fails now must not wait for absent brokers
        await self._flush()
        await self._await_commit()
        try:
            assignment, done = await asyncio.wait_for(self._inbox.get(), timeout=1.0)
        except TimeoutError:
            self._alive()
            return
        try:
            self.assignment = assignment
            if assignment is None:
                self._suspend()
            else:
                await self._take_over(assignment)
        finally:
            self._answer(done)

    @staticmethod
    def _answer(done: asyncio.Future[None]) -> None:
        if not done.done():  # the caller may have been cancelled
            done.set_result(None)

    async def _turn_or_heal(self) -> None:
        try:
            for failure in self.replicas.failures:
                raise failure
            await self._turn()
        except StoreFailed as failure:
            if await self._await_commit():
                await self._heal(failure)
        except OffsetGone as gone:
            log.warning("an offset can't be read, the partitions are taken over again", reason=str(gone))
            await self._flush()
            await self._await_commit()
            await asyncio.sleep(RETRY_PAUSE_S)
            if self.assignment is not None:
                await self._take_over(self.assignment)

    async def _turn(self) -> None:
        if self._committing is not None and self._committing.done() and not await self._await_commit():
            return
        if not self.sources and not self.replicas.held:
            await asyncio.sleep(POLL_WAIT_MS / 1000)  # idle: there are more workers than partitions
            return
        self._resume_due_sources()
        if self._unchecked and await self._begin_restored():
            return
        fills_batch = not self.sources.keys() <= self._reader.paused()
        limit = self._limit if fills_batch else POLL_RECORDS
        wait_ms = DUE_WAIT_MS if self._batch else POLL_WAIT_MS
        fetched = await self._reader.getmany(timeout_ms=wait_ms, max_records=limit)
        self._reread_gaps(fetched)
        handled = 0
        for partition, records in fetched.items():
            if partition in self.replicas.held:
                self.replicas.held[partition].apply(records)
                await self._yield_to_http()
            elif partition in self.sources:
                handled += await self._process(self.sources[partition], records)
            if not self._inbox.empty():
                return  # everything fetched but not handled is read again after the take-over
        if self.replicas.restoring or (self.assignment is not None and self.assignment.standby):
            self._advance_replicas()
            self.replicas.tell_of_restore()
        self._advance_sources()
        if self._batch and self._is_due(handled):
            await self._flush()

    def _is_due(self, handled: int) -> bool:
        """Whether to commit the batch now, after the last fetch gave `handled` records.

        A commit costs the brokers the same however little it holds. So if records came during a commit, the next one
        waits for as long as that took.
        """
        if self._batch.full or self._limit < POLL_RECORDS:
            return True
        under_way = self._committing is not None and not self._committing.done()
        return handled < POLL_RECORDS and not under_way and time.monotonic() >= self._pause_ends

    def _reread_gaps(self, fetched: dict[Partition, list[ReadRecord]]) -> None:
        for tp, asked in list(self._gap_guard.unseen.items()):
            position = self._reader.position(tp)
            if position == asked:
                continue
            first = fetched[tp][0].offset if tp in fetched else position
            if self._gap_guard.must_reread(tp, first):
                self._reader.seek(tp, asked)
                fetched.pop(tp, None)

    def _go_back(self, record: ReadRecord) -> None:
        """Read from this record on. What is fetched then could be dropped, as after an assignment."""
        place = record.topic, record.partition
        self._reader.seek(place, record.offset)
        self._gap_guard.expect(place, record.offset)

    @Service.task
    async def _watch(self) -> None:
        """Tells what holds records back; stops a worker that does, or whose topics are gone, whatever its task does."""
        watchdog, open_transactions = Watchdog(), OpenTransactions(self._offsets.bootstrap)
        while not self.should_stop:
            await self.sleep(WATCH_S)
            watched = self.sources.keys() - self._to_pause()
            try:
                self._topic_guard.check(await asyncio.to_thread(self._offsets.topic_ids, self._own_topics))
                await self._version.refuse_if_superseded(asyncio.to_thread)
                ends = await asyncio.to_thread(self._offsets.ends, watched)
                stable = await asyncio.to_thread(self._offsets.stable_ends, watched)  # after the ends: no lower by then
                now = time.monotonic()
                self._held_back = open_transactions.check(stable, ends, now)
                self._out_of_sync = await self._find_out_of_sync(self._uncommitted.told(now))
                at_work = watched & (self.sources.keys() - self._to_pause())
                at_fault = {tp: self._reached[tp] for tp in at_work if tp not in self._uncommitted}
                watchdog.check(self._turns, at_fault, stable, now)
            except OffsetsUnknown:
                log.info("the broker does not answer, so a lack of progress means nothing")
            except Standstill as standstill:
                log.critical("the worker stops: it makes no progress", reason=str(standstill))
                raise
            except (TopicGone, AccessRefused, VersionRefused) as refusal:
                log.critical("the worker stops: it may not go on", reason=str(refusal))
                raise

    async def _find_out_of_sync(self, uncommitted: Sequence[Told]) -> Sequence[Told]:
        """Where batches go that can't be committed, if copies are missing there. Raises OffsetsUnknown."""
        if not uncommitted:
            return ()
        written = {topic.name for each in self._processors.values() for processor in each for topic in processor.writes}
        found = await asyncio.to_thread(self._offsets.out_of_sync, written | self._own_topics)
        why = "{} of {} copies are in sync, maybe too few to write; fix: start the brokers that hold the others"
        return [Told(place, uncommitted[0].since, why.format(*copies)) for place, copies in sorted(found.items())]

    @Service.task
    async def _measure(self) -> None:
        while not self.should_stop:
            await self.sleep(MEASURE_S)
            for leader in {self._ends.leader(tp) for tp in self._followed()}:
                self._ends_asked(leader)

    def _ends_asked(self, leader: int | None) -> asyncio.Future[None]:
        """Done once the leader has been asked where its changelogs end. All who wait for it share one question."""
        if (asked := self._learning.get(leader)) is None or asked.done():
            asked = self._learning[leader] = asyncio.ensure_future(self._learn_ends(leader))
        return asked

    async def _learn_ends(self, leader: int | None) -> None:
        """Learns how far the changelogs reach that are read here from this broker.

        Not from the reader: it says nothing of one leader that it can't reach, nor while a take-over or a commit waits.
        """
        asked_at = elapsed_s()
        led = [tp for tp in self._followed() if self._ends.leader(tp) == leader]
        for tp, end in (await self._ends.of(leader, led)).items():
            if replica := self.replicas.held.get(tp):
                replica.learn_end(end, asked_at)

    def _followed(self) -> Iterator[TopicPartition]:
        """The changelogs that are read here, because others write them or they are being restored."""
        return (tp for tp, replica in self.replicas.held.items() if not replica.ours)

    # Filling the batch.

    async def _process(self, source: Source, records: Sequence[ReadRecord]) -> int:
        """Handle the records, up to a rebalance. Returns how many it handled."""
        partition = source.partition
        if partition.topic == self.topology.parking.name:
            return await self._fulfil_wishes(source, records)
        if source.delay_s:
            records = self._due(source, records)
        parking = self._parking(partition.partition)
        writers = sum(bool(processor.writes) for processor in source.processors)
        size = SLICE_RECORDS if writers < 2 else 1  # what several write keeps the order of the records it answers
        for start in range(0, len(records), size):
            if not self._inbox.empty():
                return start  # the others are read again after the take-over
            self._alive()
            part = records[start : start + size]
            for processor in source.processors:
                processor.process(part, self._rows_of(processor, partition.partition), self._batch, parking)
            source.handled(part)
            self._batch.advance(partition, source.position, len(part))
            await self._yield_to_http()
        return len(records)

    async def _yield_to_http(self) -> None:
        if time.monotonic() >= self._slice_ends:
            for _ in range(HTTP_TURNS):
                await asyncio.sleep(0)
            self._slice_ends = time.monotonic() + SLICE_S

    def _due(self, source: Source, records: Sequence[ReadRecord]) -> Sequence[ReadRecord]:
        """The records that are old enough; the reader goes back to the first that isn't and pauses until it is."""
        due = source.due(records, self._clock.now(), elapsed_s())
        if len(due) < len(records):
            self._go_back(records[len(due)])
            self._reader.pause(source.partition)
        return due

    def _resume_due_sources(self) -> None:
        now, elapsed = self._clock.now(), elapsed_s()
        for tp, source in self.sources.items():
            if source.due_at and source.is_due(now, elapsed):
                source.due_at = 0.0
                self._reader.resume(tp)

    async def _fulfil_wishes(self, source: Source, records: Sequence[ReadRecord]) -> int:
        """Do what operators want done with parked records. Returns how many it handled.

        Stops early for a rebalance, and for the batch: a retry may take seconds, and other work waits for its commit.
        """
        for done, record in enumerate(records):
            if not self._inbox.empty():
                return done
            if done and self._batch.full:
                self._go_back(record)
                return done
            self._alive()
            try:
                wish = Wish.model_validate_json(record.value or b"")
            except ValueError as error:
                self._batch.bury(record, "wish.bad", str(error)[:REASON_MAX_CHARS])
            else:
                refusal = self._refused.get((WISHES, record.topic, record.partition, record.offset))
                note = await self._wishes.fulfil(
                    wish,
                    self._parking(record.partition),
                    partial(self._retry, refusal, record.timestamp),
                    self._batch.bury,
                    FULL_RECORDS if refusal is None else 1,
                )
                if note is not None:
                    self._batch.write(record.topic, *note.record, record.partition)
            source.position = record.offset + 1
            self._batch.advance(source.partition, source.position, 1)
        return len(records)

    def _retry(
        self, refusal: Refusal | None, asked_ms: int, processor: Processor, record: ReadRecord
    ) -> Failure | None:
        """refusal: of what the retry of more than this record leads to, and the second time of what this one does.

        asked_ms: when an operator asked for it, by the broker.
        """
        if refusal is not None and refusal.times == TIMES_REFUSED:
            return Failure(TOO_LARGE, refusal.reason[:REASON_MAX_CHARS])
        rows = self._rows_of(processor, record.partition)
        return processor.attempt(record, rows, self._batch, retried_ms=asked_ms)

    def _rows_of(self, processor: Processor, partition: int) -> Rows | None:
        if processor.table is None:
            return None
        rows = self._rows(processor.table, partition)
        if processor.outcomes is not None:
            rows.outcomes = self._rows(processor.outcomes, partition)
        return rows

    def _rows(self, table: Table, partition: int) -> Rows[Any]:
        place = (self.replicas.changelog(table), partition)
        if place not in self._batch.rows:
            pending = self._pending.rows.get(place)
            self._batch.rows[place] = self.replicas.rows(
                table,
                partition,
                pending.changed if pending else {},
                careful=self._failures > 0 or place in self._careful,
            )
        return self._batch.rows[place]

    def parked_keys(self, partition: int) -> int:
        """How many keys are parked. Raises NotReady if the partition is not held here."""
        known = self._parked.get(partition)  # once a record of the partition was handled
        return len(known) if known is not None else sum(1 for _ in self.replicas.keys(self.topology.parked, partition))

    def _parking(self, partition: int) -> Parking:
        rows = self._rows(self.topology.parked, partition)
        if partition not in self._parked:
            self._parked[partition] = {key.decode() for key, _ in rows.store.scan(partition)}
            noted = Parking(rows, set())
            topics = noted.topics | {topic: id_ for topic, id_ in self._topic_ids.items() if topic in self._processors}
            if topics != noted.topics:
                noted.note_topics(partition, topics)
        return Parking(rows, self._parked[partition])

    async def _begin_restored(self) -> bool:
        """Of each partition once its rows are restored, before its first record: check what is noted beside them, and
        commit where its sources without a position begin. So a later owner sees that this version has begun, and no row
        is without a position. Returns whether it committed. Raises VersionRefused.
        """
        new: list[TopicPartition] = []
        restored = {tp.partition for tp in self.sources.keys() - self._reader.paused()}
        for number in restored & self._unchecked.keys():
            parking = Parking(self._rows(self.topology.parked, number), set())
            if parking.superseded:
                self._version.refuse_successor()
            noted, filled = parking.topics, partial(self._has_rows, number)
            unread = {tp.topic for tp in self._unchecked[number]}
            self._version.refuse_by_notes(number, noted, self._topic_ids, unread, filled)
            if noted and unread:
                self._parking(number)  # notes which topics these positions are in
            new += self._unchecked.pop(number)
        for tp in new:
            self._batch.advance(tp, self.sources[tp].position, 0)
        if new:
            await self._flush()
        return bool(new)

    def _has_rows(self, partition: int, table: Table) -> bool:
        return any(True for _ in self._rows(table, partition).store.scan(partition))

    # Committing the batch.

    async def _flush(self) -> None:
        """Start to commit the batch, once the previous one is committed. The next one is filled meanwhile."""
        await self._await_commit()
        batch, self._batch = self._batch, Batch(self._dead_letters, self._refused)
        if not batch or self.assignment is None:
            return
        self._pending = batch
        sent = asyncio.Event()
        self._committing = asyncio.create_task(self._commit(batch, self.assignment.member, sent))
        await sent.wait()  # sending needs the interpreter lock, as filling the next batch would

    async def _commit(self, batch: Batch, member: bytes, sent: asyncio.Event) -> None:
        """Commit the batch, then write the store, then answer the callers."""
        began = time.monotonic()
        try:
            changes = await self._in_thread(self._send, batch)
        finally:
            sent.set()
        self._after_commit(batch, await self._in_thread(self._finish, batch, changes, member))
        now = time.monotonic()
        self._pause_ends = now + PAUSE * (now - began) if self._batch else 0.0

    def _send(self, batch: Batch) -> Encoded:
        try:
            changes = {partition: rows.encoded() for partition, rows in batch.rows.items() if rows.changed}
        except RowUnwritable as failure:  # tried again, each change is checked, and its record parked
            self._careful.add(failure.changelog)  # other partitions may commit before
            raise TransactionAborted(str(failure)) from failure
        records = [
            Record(topic, key, value, partition)
            for (topic, partition), rows in changes.items()
            for key, value in rows.items()
        ]
        self._growth_guard.check(changes)
        self._producer.send(batch.records + records)
        return changes

    def _finish(self, batch: Batch, changes: Encoded, member: bytes) -> Mapping[Partition, int]:
        written = self._producer.commit(batch.offsets, member)
        # before rows tell of these events: a position must not lie before them
        self._facts = self._facts | {place: written[place] for place in self._facts.keys() & written.keys()}
        failpoints.reached("after_commit")
        for partition, rows in changes.items():
            batch.rows[partition].store.apply(partition[1], rows, written[partition])
        failpoints.reached("after_store")
        return written

    async def _await_commit(self) -> bool:
        """Wait for the commit under way. False if it failed: the engine has then gone back to what is committed."""
        committing, self._committing = self._committing, None
        if committing is None:
            return True
        try:
            await committing
        except TransactionAborted as aborted:
            self.aborts += 1
            await self._roll_back(aborted)
        except RecordTooLarge as refusal:
            self.aborts += 1
            self._note(refusal)
            self._limit = 1
            await self._roll_back(TransactionAborted(str(refusal)))
        except StoreFailed as failure:
            await self._heal(failure)
        else:
            return True
        return False

    def _after_commit(self, batch: Batch, written: Mapping[Partition, int]) -> None:
        self._failures = 0
        self._limit = min(POLL_RECORDS, self._limit * 2)
        self.commits += 1
        self.handled += batch.count
        self._pending = Batch(self._dead_letters)
        self._uncommitted.ended(batch.offsets)
        self._reached |= batch.offsets
        self._committed_at = time.monotonic()
        for partition, rows in batch.rows.items():
            if rows.changed:  # our commit marker follows our last record: nobody else writes this changelog
                self.replicas.held[TopicPartition(*partition)].position = written[partition] + 2
                self._careful.discard(partition)
        for handling in [each for each in self._refused if each[3] < batch.offsets.get(each[1:3], 0)]:
            del self._refused[handling]
        handled = {partition: position - 1 for partition, position in batch.offsets.items()}
        # the events last: they may be handled here, too, but not in the batch that writes them
        self.waiting.committed(batch, {**handled, **written, **self._facts})

    async def _roll_back(self, aborted: TransactionAborted) -> None:
        self._failures += 1
        # the batch may have been too large for one transaction, for a slow broker, or for the time of a session
        self._limit = max(1, self._limit // 2)
        self._may_be_pending = True
        pause_s = min(RETRY_PAUSE_S * 2 ** min(self._failures - 1, 10), MAX_RETRY_PAUSE_S)
        log.warning("batch not committed, its records are read again", reason=str(aborted), pause_s=pause_s)
        self._uncommitted.note(self._pending.offsets, f"batches can't be committed: {aborted}", time.monotonic())
        self._drop_uncertain()
        if aborted.lost_membership:
            self._uncommitted.keep_only(())
            self.assignment = None  # the group will assign again
            self._suspend()
            self._drop_replicas()
        elif self.assignment is not None:
            if not self._interrupted:
                await asyncio.sleep(pause_s)
            await self._take_over(self.assignment)

    def _note(self, refusal: RecordTooLarge) -> None:
        """Remember which record can't be handled, once a batch of one record was refused. Raises the refusal.

        Only brokers know what they take. So after a refusal, records are tried alone, then in batches that grow.
        """
        if self._pending.count > 1 or not refusal.topic:  # without it, the next refusal will name it
            return
        if self._pending.last is None:
            raise refusal
        place, offset = self._pending.last
        handlings = [(name, *place, offset) for name in self._writers(place[0], refusal.topic)]
        times = {each: self._refused[each].times if each in self._refused else 0 for each in handlings}
        handling = min(handlings, key=times.__getitem__, default=None)
        if handling is None or times[handling] == TIMES_REFUSED:
            raise refusal
        self._refused[handling] = Refusal(str(refusal), times[handling] + 1)

    def _writers(self, source: str, topic: str) -> Sequence[str]:
        """The names of the processors of `source` that write to `topic`."""
        if source == self.topology.parking.name:
            return [WISHES]
        return [
            each.name
            for each in self._processors[source]
            if topic in [to.name for to in each.writes] or topic in map(self.replicas.changelog, each.tables)
        ]

    async def _heal(self, failure: StoreFailed) -> None:
        """Wipe the broken replica, drop all uncommitted work, and take over again.

        A replica that breaks while it is filled from an empty store stops the worker: the next one would break, too.
        """
        replica = self.replicas.broken(failure)
        if replica is None or not (replica.restored or replica.kept) or self.assignment is None:
            raise failure
        log.error("a local store failed and is wiped; its changelog restores it", store=str(failure))
        self.replicas.wipe(replica)
        self._drop_uncertain()
        await self._take_over(self.assignment)

    def _drop_uncertain(self) -> None:
        """Drop the replicas that the failed commit wrote: whether it took effect, only their changelogs can tell."""
        self.replicas.drop(TopicPartition(*place) for place, rows in self._pending.rows.items() if rows.changed)

    # Taking over and restoring.

    def _suspend(self) -> None:
        """Stop processing. Restored rows stay readable: nobody writes them before the group assigns again.

        Unless it has expelled this worker, which ends the lease.
        """
        self._batch = Batch(self._dead_letters, self._refused)
        self._pending = Batch(self._dead_letters)
        self._parked.clear()
        self._unchecked.clear()
        self._skipped.clear()
        self.sources.clear()
        self._reader.assign({})
        self._gap_guard = GapGuard({})

    def _drop_replicas(self) -> None:
        """Hold no replica any more: another worker may own our partitions now."""
        self.replicas.drop(self.replicas.held)
        self.waiting.wake_all()

    def _serve_only(self, active: Set[TopicPartition]) -> None:
        """Stop serving all other partitions at once: their new owners may write."""
        for tp, replica in self.replicas.held.items():
            replica.active = replica.active and tp in active
        self.waiting.wake_all()

    async def _take_over(self, assignment: Assignment) -> None:
        """Take over an assignment.

        Committed offsets are read first: once they are stable, no predecessor can write, and the changelogs are final.
        """
        self._suspend()
        self._serve_only(assignment.active)
        actives = sorted(tp for tp in assignment.active if self.replicas.is_changelog(tp))
        standbys = sorted(tp for tp in assignment.standby - assignment.active if self.replicas.is_changelog(tp))
        sources = sorted(tp for tp in assignment.active if tp.topic in self._processors)
        facts = [TopicPartition(*place) for place in self._facts_of(sources)]
        self._refuse_added(sources)
        self._refuse_strays(sources, assignment.active)
        try:
            await self._version.refuse_if_superseded(self._ask)
            committed = await self._ask(self._committed, sources, assignment.member)
            if set(committed.values()) == {None}:
                await self._version.refuse_if_it_would_repeat()
            starts = await self._ask(self._offsets.starts, sources + actives + standbys)
            asked_at = elapsed_s()
            ends = await self._ask(self._offsets.ends, {*sources, *actives, *standbys, *facts})
            self._topic_ids = await self._ask(self._found_topics)
            self._topic_guard.check(self._topic_ids)
            await self._version.refuse_changed_tables(committed, starts, ends)
            await self._reader.learn({tp.topic for tp in (*sources, *actives, *standbys)})
            # an empty changelog stays empty while it tells that no record was handled
            handled = self.replicas.begun({tp for tp in sources if committed[tp]})
            written = await self._ask(
                self._written_ends, [tp for tp in actives if tp in handled or starts[tp] < ends[tp]]
            )
            if not self._clock.is_known and any(each.delay_s for tp in sources for each in self._processors[tp.topic]):
                await self._ask(self._written_ends, [(self._dead_letters, sources[0].partition)])  # tells the time
        except OffsetsUnknown:
            return  # a rebalance or a stop comes first
        for tp in sources:
            position = first_position(tp, committed[tp], starts[tp], ends[tp])
            self.sources[tp] = Source(tp, self._processors[tp.topic], position, ends[tp])
            new = self._unchecked.setdefault(tp.partition, [])
            if committed[tp] is None:
                new.append(tp)
        self._version.warn_of_late_views({tp for tp in sources if self.sources[tp].position > starts[tp]}, ends)
        ends = {**ends, **self.replicas.pass_written(written)}
        self.replicas.hold(actives, standbys, starts, ends, self._topic_ids)  # not before all checks have passed
        for tp, replica in self.replicas.held.items():
            replica.learn_end(ends[tp], asked_at)
        self._uncommitted.keep_only(self.sources)
        self._reached = {tp: source.position for tp, source in self.sources.items()}
        self._facts = {place: ends[place] - 1 for place in facts}
        self.waiting.tell_progress()
        self._assign_reader()
        log.info(
            "took over",
            sources=len(sources),
            tables=len(actives),
            standbys=len(standbys),
            to_restore=self.replicas.to_restore,
        )
        self._tell_if_idle(assignment)

    def _facts_of(self, sources: Iterable[TopicPartition]) -> set[Partition]:
        """Where the events go that records of these sources lead to."""
        processors = ((each, tp.partition) for tp in sources for each in self._processors[tp.topic])
        return {(each.facts.name, partition) for each, partition in processors if each.facts is not None}

    def _tell_if_idle(self, assignment: Assignment) -> None:
        """Once, when it becomes idle: a rebalance that leaves it idle is no news."""
        was_idle, self._is_idle = self._is_idle, not assignment.active
        if self._is_idle and not was_idle:
            log.info("idle: more workers than partitions", partitions=self.topology.partitions)

    def _refuse_added(self, sources: Sequence[TopicPartition]) -> None:
        """Raises TopologyMismatch for partitions added while this worker runs: rows of their keys are elsewhere."""
        declared = self.topology.partitions
        require_partitions({tp.topic: tp.partition + 1 for tp in sources if tp.partition >= declared}, declared)

    def _refuse_strays(self, sources: Iterable[TopicPartition], active: Set[TopicPartition]) -> None:
        """Raises MixedReleases for a source whose processors' rows are not assigned with it."""
        for tp in sources:
            tables = [table for each in self._processors[tp.topic] for table in each.tables]
            for table in (*tables, self.topology.parked):
                rows = TopicPartition(self.replicas.changelog(table), tp.partition)
                if rows not in active:
                    raise MixedReleases(
                        f"{tp.topic}/{tp.partition} was assigned without {rows.topic}, which workers of an older "
                        f"release in the group don't know; fix: stop all workers of {self.topology.service}, then "
                        f"start those of this release"
                    )

    def _committed(self, sources: Sequence[Partition], member: bytes) -> Mapping[Partition, int | None]:
        """What the group has committed, once no aborted offsets of ours are pending: our next commit could commit them.

        An idle worker clears its own, too: they would keep the owner of their partitions from reading its positions.
        The answer has to include what this worker has just signed. So it does not come from a coordinator that was
        superseded before this worker joined: a predecessor's commits would be missing, and their work done again.
        Blocking. Raises OffsetsUnknown.
        """
        if self._may_be_pending:
            any_sources = sources or [TopicPartition(self.topology.parking.name, 0)]
            self._offsets.ends(any_sources)  # answers at once; the producer would wait for absent brokers
            try:
                self._producer.forget_pending(any_sources, member)
            except TransactionAborted as failure:
                cause = "the group has moved on and assigns again: " if failure.lost_membership else ""
                raise OffsetsUnknown(f"{cause}{failure}") from failure
        if not sources:
            self._may_be_pending = False
            return {}
        self._may_be_pending = True
        # no position is ever committed there; of the partitions that are ours, so that nobody else signs it
        own, signature = (self.replicas.changelog(self.topology.parked), sources[0][1]), uuid4().hex
        self._sign(own, signature)
        positions = self._offsets.positions(self.topology.group, [*sources, own])
        if positions[own].note != signature:
            raise OffsetsUnknown("the group's coordinator has answered from the past: another leads in its place")
        self._may_be_pending = False
        return {tp: positions[tp].offset for tp in sources}

    def _written_ends(self, changelogs: Sequence[Partition]) -> Mapping[Partition, int]:
        """Where our changelogs end: behind all that a predecessor has committed. Blocking. Raises OffsetsUnknown."""
        try:
            return self._producer.written_ends(changelogs) if changelogs else {}
        except TransactionAborted as failure:
            raise OffsetsUnknown(str(failure)) from failure

    def _found_topics(self) -> Mapping[str, str]:
        """The ids of all topics that this service reads, and of its changelogs. Blocking. Raises OffsetsUnknown."""
        found = self._offsets.topic_ids(self._own_topics)
        if missing := self._own_topics - found.keys():
            raise OffsetsUnknown(f"the brokers have no topic {min(missing)}")
        return found

    def _assign_reader(self) -> None:
        """Let the reader read all that is held; sources wait until the tables of their partition are restored."""
        positions = {tp: source.position for tp, source in self.sources.items()}
        positions |= {tp: replica.position for tp, replica in self.replicas.held.items()}
        if not positions:
            return
        self._reader.assign(positions)
        self._gap_guard = GapGuard(positions)
        self._reader.pause(*self._to_pause())

    def _to_pause(self) -> set[TopicPartition]:
        """Sources that wait for a restore or a due time, and changelogs that only this worker writes now."""
        held = self.replicas.held.items()
        restoring = {tp.partition for tp, replica in held if replica.active and not replica.restored}
        sources = {tp for tp, source in self.sources.items() if tp.partition in restoring or source.due_at}
        return sources | {tp for tp, replica in held if replica.ours}

    def _advance_sources(self) -> None:
        """Follow the reader past offsets that hold no record: everything that was fetched is handled.

        These positions are committed, too, with the next batch or in a quiet moment. So when retention removes those
        offsets, no record seems to be lost.
        """
        busy = self._reader.paused() | self._batch.offsets.keys() | self._pending.offsets.keys()
        for tp in self.sources.keys() - busy:
            position = self._reader.position(tp)
            if position > self.sources[tp].position:
                self.sources[tp].position = self._reached[tp] = self._skipped[tp] = position
                self.waiting.tell_progress()
        quiet = self._committing is None and time.monotonic() - self._committed_at >= QUIET_S
        if self._batch or quiet:
            self._batch.offsets = self._skipped | self._batch.offsets
            self._skipped = {}

    def _advance_replicas(self) -> None:
        """Follow the reader, which also passes offsets without a record: markers, aborted and compacted records."""
        reader, held = self._reader, self.replicas.held.items()
        restored = [tp for tp, r in held if not r.ours and r.advance(reader.position(tp), reader.highwater(tp))]
        if restored:
            to_pause = self._to_pause()
            self._reader.pause(*to_pause)
            self._reader.resume(*(self._reader.assignment() - to_pause))

    async def _ask(self, question: Callable[..., Any], *args: Any) -> Any:
        """The brokers' answer: they are asked again while they are away or elect leaders.

        Raises OffsetsUnknown when a rebalance or a stop comes first.
        """
        pause_s = RETRY_PAUSE_S
        while not self._interrupted:
            self._turns += 1
            try:
                answer = await self._in_thread(question, *args)
                self._unanswered.ended([None])
                return answer
            except OffsetsUnknown as failure:
                name = question.__name__.strip("_")
                reason = f"the brokers give no final answer about {name}: {failure}"
                self._unanswered.note([None], reason, time.monotonic())
                log.warning("no final answer from the brokers, asking again", question=name, reason=str(failure))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_RETRY_PAUSE_S)
        raise OffsetsUnknown("a rebalance or a stop came first")

    @property
    def _interrupted(self) -> bool:
        """Whether a rebalance waits to be handled, or the worker stops."""
        return self.should_stop or not self._inbox.empty()

    async def _in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def on_start(self) -> None:
        # Python's default, every 700 new objects, would search a batch's rows for cycles that they can't have
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)
        sys.setswitchinterval(SWITCH_S)

    async def on_stop(self) -> None:
        if self._committing is not None:
            await asyncio.wait([self._committing])
        for asked in self._learning.values():
            asked.cancel()
        await self._ends.stop()
        await self._reader.stop()
        self._thread.shutdown()
