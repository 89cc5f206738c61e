"""The batch engine: a partition's waiting records, the pure part for each, one transaction for all of it.

One task owns the reader, so positions never move under it. Faust's group says which partitions are ours
(`assign`, `release`); the engine restores their tables from the changelogs, reads their sources from the committed
offsets on, and commits rows, events, dead letters and offsets together. After any failed commit it begins again
from what the broker has committed: the only truth it relies on.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from mode import Service

from shared import failpoints
from shared.clock import elapsed_s
from shared.es.errors import REASON_MAX_CHARS
from shared.es.row import RowCodec
from shared.kafka.offsets import Offsets, OffsetsUnknown
from shared.kafka.reader import OffsetGone, Reader, ReadRecord, ReadRefused
from shared.kafka.transactions import (
    Record,
    TransactionAborted,
    TransactionalProducer,
    TransactionRefused,
)
from shared.parking import PARKED_CODEC, Wish
from shared.positions import Partition
from shared.streams.batch import Batch, Rows, RowUnreadable
from shared.streams.guards import Beginnings, Standstill, Watchdog
from shared.streams.parking import Parking
from shared.streams.processors import Processor, by_source
from shared.streams.replicas import Replicas
from shared.streams.sources import Source, SourceGone, first_position
from shared.streams.store import RowStore, StoreFailed
from shared.streams.versions import NotRebuilt, PositionsForgotten, Superseded, VersionGuard
from shared.streams.waiting import Waiting
from shared.streams.wishes import Wishes
from shared.topology import Table, Topology

log = structlog.get_logger(__name__)

POLL_RECORDS = 500  # more at once, and Python's garbage collector stalls the HTTP side
RESTORE_RECORDS = 5_000
SLICE_RECORDS = 50  # handled in one go, about a millisecond's work
SLICE_S = 0.002  # then the HTTP side gets its turns
HTTP_TURNS = 3  # of the loop: to read a request, to answer it, and one for who came meanwhile
SWITCH_S = 0.0005  # the commit's thread gives the interpreter back that fast; Python's default is 5 ms, each time
POLL_WAIT_MS = 100
RETRY_PAUSE_S = 0.5
MAX_RETRY_PAUSE_S = 5.0
QUIET_S = 5.0
WATCH_S = 10.0
COLLECT_AFTER = 50_000  # objects made, and not freed by their count: a collection then takes a few milliseconds
BEGUN = b"begun"  # no id of a parked key


Encoded = Mapping[Partition, Mapping[bytes, bytes | None]]
"""Rows as they are written, by changelog partition."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The group's word on what is ours, and the membership that the broker will check.

    generation, member_id: what `member` is made of.
    """

    active: frozenset[TopicPartition]
    standby: frozenset[TopicPartition]
    member: bytes
    generation: int
    member_id: str


class Engine(Service):
    """One per worker process. replicas: its rows, to read. waiting: for those who wait for its commits."""

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
        lease_s: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topology = topology
        self.sources: dict[TopicPartition, Source] = {}
        self.replicas = Replicas(topology, stores, _codecs(topology, processors))
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
        self._lease_s = lease_s
        self._lease_ends = 0.0
        self._joined: tuple[str, int] = ("", 0)  # our member id, and the generation of the group when it last had us
        self._followed: Set[TopicPartition] = set()  # changelogs that were, up to the release
        self._left = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._beginnings = Beginnings({})
        self._reached: dict[Partition, int] = {}  # the next offset of each source, as of the last commit
        self._skipped: dict[Partition, int] = {}  # positions behind what is no record, not in a batch yet
        self._committed_at = 0.0
        self._inbox: asyncio.Queue[tuple[Assignment | None, asyncio.Future[None]]] = asyncio.Queue()
        self._parked: dict[int, set[str]] = {}  # by partition: the ids of the parked keys
        self._dead_letters = topology.dead_letters.name
        self._batch = Batch(self._dead_letters)
        self._pending = Batch(self._dead_letters)  # the one before, while it is being committed
        self._committing: asyncio.Task[None] | None = None
        self._failures = 0
        self._slice_ends = 0.0

    # What the group tells us. All are called on the worker's loop.

    async def release(self) -> None:
        """Commit what is done and let go of every partition. Returns when no more is written."""
        await self._post(None)

    async def assign(self, assignment: Assignment) -> None:
        """Take these partitions over; restoring them goes on after the return."""
        await self._post(assignment)

    async def leave(self) -> None:
        """Before this worker leaves the group: answer nothing any more, so that the next owner may."""
        self._left = True
        self.waiting.end()
        await self.release()

    async def _post(self, assignment: Assignment | None) -> None:
        if self.should_stop or not self.started:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((assignment, done))
        await done

    def joined(self, assignment: Assignment, sent: float) -> None:
        """The group counts this worker in since `sent` (`elapsed_s`). It is told to take over later.

        In a generation that it missed, or under its name, another may have owned what it held, and written.
        """
        member_id, generation = self._joined
        if assignment.member_id != member_id or assignment.generation not in (generation, generation + 1):
            self._let_go()
        self._joined = assignment.member_id, assignment.generation
        self._keep(assignment.active)
        self.extend_lease(sent)

    def extend_lease(self, sent: float) -> None:
        """The group answered a heartbeat sent at `sent` (`elapsed_s`): no other worker owns our partitions yet."""
        self._lease_ends = sent + self._lease_s

    # What the HTTP side asks.

    def serves(self, table: Table, partition: int) -> bool:
        """Whether rows read here now are the latest."""
        replica = self.replicas.of(table, partition)
        return replica is not None and replica.ours and self.in_lease

    def standby_lag(self, table: Table, partition: int) -> int | None:
        """Records by which the copy held here is behind; None when none is, or nobody knows."""
        replica = self.replicas.of(table, partition)
        if replica is None or replica.ours or not self.in_lease:
            return None
        # while a take-over waits for brokers, nothing is read, however long that takes
        return replica.lag if replica.changelog in self._followed | self._reader.assignment() else None

    @property
    def in_lease(self) -> bool:
        """Whether the group counts this worker in. One that was frozen or suspended is out when it wakes."""
        return not self._left and elapsed_s() < self._lease_ends

    def position(self, table: Table, partition: int) -> int:
        """Offset of the last source record that rows read here include; -1 while there is none."""
        return self._reached.get((table.source.name, partition), 0) - 1

    def source_lag(self, source: Source) -> int:
        """How many records of the source, transaction markers included, are not handled yet."""
        if source.partition in self._reader.assignment():
            source.end = max(source.end, self._reader.highwater(source.partition))
        return max(0, source.end - source.position)

    # The one task.

    @Service.task
    async def _run(self) -> None:
        try:
            while not self.should_stop:
                if self.assignment is None or not self._inbox.empty():
                    await self._obey_group()
                else:
                    self._alive()
                    await self._turn_or_heal()
        except (
            TransactionRefused,
            ReadRefused,
            SourceGone,
            NotRebuilt,
            Superseded,
            PositionsForgotten,
            StoreFailed,
            RowUnreadable,
        ) as refusal:
            log.critical("the worker stops: going on can't help", reason=str(refusal))
            raise
        finally:
            while not self._inbox.empty():  # whoever waits for these would wait for ever
                self._answer(self._inbox.get_nowait()[1])

    async def _obey_group(self) -> None:
        # meanwhile the word stays in the inbox: a commit that fails now must not wait for brokers that are away
        await self._flush()
        await self._settle()
        try:
            assignment, done = await asyncio.wait_for(self._inbox.get(), timeout=1.0)
        except TimeoutError:
            self._alive()
            return
        try:
            self.assignment = assignment
            if assignment is None:
                self._followed = self._reader.assignment()
                self._suspend()
            else:
                await self._take_over(assignment)
        finally:
            self._answer(done)

    @staticmethod
    def _answer(done: asyncio.Future[None]) -> None:
        if not done.done():  # who asked may have gone
            done.set_result(None)

    async def _turn_or_heal(self) -> None:
        try:
            for failure in self.replicas.failures:
                raise failure
            await self._turn()
        except StoreFailed as failure:
            if await self._settle():
                await self._heal(failure)
        except OffsetGone as gone:
            log.warning("what was to be read is gone, taken over anew", reason=str(gone))
            await self._flush()
            await self._settle()
            await asyncio.sleep(RETRY_PAUSE_S)
            if self.assignment is not None:
                await self._take_over(self.assignment)

    async def _turn(self) -> None:
        if self._committing is not None and self._committing.done() and not await self._settle():
            return
        if not self.sources and not self.replicas.held:
            await asyncio.sleep(POLL_WAIT_MS / 1000)  # one worker more than there are partitions
            return
        self._wake_due_sources()
        restoring = self.replicas.restoring
        # after a failure ever fewer: it may have been too much for one transaction, or for a slow broker
        only_restoring = restoring and self.sources.keys() <= self._reader.paused()
        limit = RESTORE_RECORDS if only_restoring else max(1, POLL_RECORDS >> self._failures)
        fetched = await self._reader.getmany(timeout_ms=POLL_WAIT_MS, max_records=limit)
        self._reread_what_begins_late(fetched)
        handled = 0
        for partition, records in fetched.items():
            if partition in self.replicas.held:
                self.replicas.held[partition].apply(records)
                await self._give_way()
            elif partition in self.sources:
                handled += await self._process(self.sources[partition], records)
            if not self._inbox.empty():
                return  # everything fetched but not handled is read again after the take-over
        if restoring or (self.assignment is not None and self.assignment.standby):
            self._advance_replicas()
        self._advance_sources()
        if self._batch and (handled < POLL_RECORDS or self._batch.full):
            await self._flush()

    def _reread_what_begins_late(self, fetched: dict[Partition, list[ReadRecord]]) -> None:
        for tp, asked in list(self._beginnings.unseen.items()):
            position = self._reader.position(tp)
            if position == asked:
                continue
            first = fetched[tp][0].offset if tp in fetched else position
            if self._beginnings.must_reread(tp, first):
                self._reader.seek(tp, asked)
                fetched.pop(tp, None)

    @Service.task
    async def _watch(self) -> None:
        """Stops a worker that stands still, whatever its one task is doing."""
        watchdog = Watchdog()
        while not self.should_stop:
            await self.sleep(WATCH_S)
            at_work = {tp: self._reached[tp] for tp in self.sources.keys() - self._at_rest()}
            try:
                watchdog.check(at_work, await asyncio.to_thread(self._offsets.ends, at_work), time.monotonic())
            except OffsetsUnknown:
                log.info("the broker does not answer, so nobody stands still")
            except Standstill as standstill:
                log.critical("the worker stops: it stands still", reason=str(standstill))
                raise

    # Filling the batch.

    async def _process(self, source: Source, records: Sequence[ReadRecord]) -> int:
        partition = source.partition
        if partition.topic == self.topology.parking.name:
            return await self._fulfil_wishes(source, records)
        if source.delay_s:
            records = self._due(source, records)
        parking = self._parking(partition.partition)
        for start in range(0, len(records), SLICE_RECORDS):
            part = records[start : start + SLICE_RECORDS]
            for processor in source.processors:
                processor.process(part, self._rows_of(processor, partition.partition), self._batch, parking)
            source.handled(part)
            self._batch.advance(partition, source.position, len(part))
            await self._give_way()
        return len(records)

    async def _give_way(self) -> None:
        if time.monotonic() >= self._slice_ends:
            for _ in range(HTTP_TURNS):
                await asyncio.sleep(0)
            self._slice_ends = time.monotonic() + SLICE_S

    def _due(self, source: Source, records: Sequence[ReadRecord]) -> Sequence[ReadRecord]:
        """The records that are old enough; the reader goes back to the first that isn't, and rests until it is."""
        due = source.due(records, time.time())
        if len(due) < len(records):
            self._reader.seek(source.partition, records[len(due)].offset)
            self._reader.pause(source.partition)
        return due

    def _wake_due_sources(self) -> None:
        now = time.time()
        for tp, source in self.sources.items():
            if source.due_at and source.due_at <= now:
                source.due_at = 0.0
                self._reader.resume(tp)

    async def _fulfil_wishes(self, source: Source, records: Sequence[ReadRecord]) -> int:
        """Do what operators want done with parked records; the group doesn't wait until it is all done."""
        for done, record in enumerate(records):
            if not self._inbox.empty():
                return done
            self._alive()
            try:
                wish = Wish.model_validate_json(record.value or b"")
            except ValueError as error:
                self._batch.bury(record, "wish.bad", str(error)[:REASON_MAX_CHARS])
            else:
                note = await self._wishes.fulfil(
                    wish,
                    self._parking(record.partition),
                    lambda processor, again: processor.attempt(
                        again, self._rows_of(processor, again.partition), self._batch
                    ),
                    self._batch.bury,
                )
                if note is not None:
                    self._batch.write(record.topic, *note.record, record.partition)
            source.position = record.offset + 1
            self._batch.advance(source.partition, source.position, 1)
        return len(records)

    def _rows_of(self, processor: Processor, partition: int) -> Rows | None:
        return None if processor.table is None else self._rows(processor.table, partition)

    def _rows(self, table: Table, partition: int) -> Rows:
        place = (self.replicas.changelog(table), partition)
        if place not in self._batch.rows:
            pending = self._pending.rows.get(place)
            self._batch.rows[place] = self.replicas.rows(table, partition, pending.changed if pending else {})
        return self._batch.rows[place]

    def parked_keys(self, partition: int) -> int:
        """How many keys are parked. Raises NotReady if the partition is not held here."""
        known = self._parked.get(partition)  # from the first record on that is handled there
        return len(known) if known is not None else sum(1 for _ in self.replicas.scan(self.topology.parked, partition))

    def _parking(self, partition: int) -> Parking:
        rows = self._rows(self.topology.parked, partition)
        if partition not in self._parked:
            self._parked[partition] = {key.decode() for key, _ in rows.store.scan(partition)}
            replica = self.replicas.of(self.topology.parked, partition)
            if self._version.leaves_no_row and replica is not None and not replica.target:
                rows.changed[BEGUN] = None  # so that the changelog's end tells for ever that records were handled
        return Parking(rows, self._parked[partition])

    # Committing it.

    async def _flush(self) -> None:
        """Hand the batch over to be committed, once the one before is. The next one is filled meanwhile."""
        await self._settle()
        batch, self._batch = self._batch, Batch(self._dead_letters)
        if not batch or self.assignment is None:
            return
        self._pending = batch
        sent = asyncio.Event()
        self._committing = asyncio.create_task(self._commit(batch, self.assignment.member, sent))
        await sent.wait()  # until then it needs the interpreter, as filling the next one would

    async def _commit(self, batch: Batch, member: bytes, sent: asyncio.Event) -> None:
        """The batch, then the store, then the answers."""
        try:
            changes = await self._in_thread(self._send, batch)
        finally:
            sent.set()
        self._advance(batch, await self._in_thread(self._finish, batch, changes, member))

    def _send(self, batch: Batch) -> Encoded:
        changes = {partition: rows.encoded() for partition, rows in batch.rows.items() if rows.changed}
        records = [
            Record(topic, key, value, partition)
            for (topic, partition), rows in changes.items()
            for key, value in rows.items()
        ]
        self._producer.send(batch.records + records)
        return changes

    def _finish(self, batch: Batch, changes: Encoded, member: bytes) -> Mapping[Partition, int]:
        written = self._producer.commit(batch.offsets, member)
        failpoints.reached("after_commit")
        for partition, rows in changes.items():
            batch.rows[partition].store.apply(partition[1], rows, written[partition])
        failpoints.reached("after_store")
        return written

    async def _settle(self) -> bool:
        """Nothing is being committed any more. False when that failed: then all is begun again from what is."""
        committing, self._committing = self._committing, None
        if committing is None:
            return True
        try:
            await committing
        except TransactionAborted as aborted:
            self.aborts += 1
            await self._begin_again(aborted)
        except StoreFailed as failure:
            await self._heal(failure)
        else:
            return True
        return False

    def _advance(self, batch: Batch, written: Mapping[Partition, int]) -> None:
        self._failures = 0
        self.commits += 1
        self.handled += batch.count
        self._pending = Batch(self._dead_letters)
        self._reached |= batch.offsets
        self._committed_at = time.monotonic()
        for partition, rows in batch.rows.items():
            if rows.changed:  # behind our last record lies our commit marker: nobody else writes this changelog
                self.replicas.held[TopicPartition(*partition)].position = written[partition] + 2
        handled = {partition: position - 1 for partition, position in batch.offsets.items()}
        self.waiting.committed(batch, {**written, **handled})

    async def _begin_again(self, aborted: TransactionAborted) -> None:
        self._failures += 1
        pause_s = min(RETRY_PAUSE_S * 2 ** min(self._failures - 1, 10), MAX_RETRY_PAUSE_S)
        log.warning("batch not committed, begins again", reason=str(aborted), pause_s=pause_s)
        self._drop_pending()
        if aborted.lost_membership:
            self.assignment = None  # the group will assign anew
            self._suspend()
            self._let_go()
        elif self.assignment is not None:
            if not self._told_anew:
                await asyncio.sleep(pause_s)
            await self._take_over(self.assignment)

    async def _heal(self, failure: StoreFailed) -> None:
        """Drop the broken copy and what is not committed.

        A copy that breaks while it is filled from nothing stops the worker: the next would break, too.
        """
        replica = self.replicas.broken(failure)
        if replica is None or not (replica.restored or replica.kept) or self.assignment is None:
            raise failure
        log.error("a store failed, wiped; the changelog restores it", store=str(failure))
        self.replicas.wipe(replica)
        self._drop_pending()
        await self._take_over(self.assignment)

    def _drop_pending(self) -> None:
        """What was being committed may have been, all the same: nobody reads these rows before the changelog tells."""
        self.replicas.drop(TopicPartition(*place) for place, rows in self._pending.rows.items() if rows.changed)

    # Taking over and restoring.

    def _suspend(self) -> None:
        """Process nothing. What is restored stays readable: nobody writes it before the group assigns anew."""
        self._batch = Batch(self._dead_letters)
        self._pending = Batch(self._dead_letters)
        self._parked.clear()
        self._skipped.clear()
        self.sources.clear()
        self._reader.assign({})
        self._beginnings = Beginnings({})

    def _let_go(self) -> None:
        """Hold nothing: what was ours may be another's."""
        self.replicas.drop(self.replicas.held)
        self.waiting.look_again()

    def _keep(self, active: Set[TopicPartition]) -> None:
        """Serve no others any more, at once: their new owners may write. Nor is a lag known that is not followed."""
        self._followed = set()
        for tp, replica in self.replicas.held.items():
            replica.active = replica.active and tp in active
        self.waiting.look_again()

    async def _take_over(self, assignment: Assignment) -> None:
        """Committed offsets first: once they are stable no predecessor can write, and the changelogs are final."""
        self._suspend()
        self._keep(assignment.active)
        actives = sorted(tp for tp in assignment.active if self.replicas.is_changelog(tp))
        standbys = sorted(tp for tp in assignment.standby - assignment.active if self.replicas.is_changelog(tp))
        sources = sorted(tp for tp in assignment.active if tp.topic in self._processors)
        try:
            await self._version.refuse_to_follow()
            committed = await self._ask(self._offsets.committed, self.topology.group, sources)
            begins = set(committed.values()) == {None}
            if begins:
                await self._version.refuse_to_repeat()
            starts = await self._ask(self._offsets.starts, sources + actives + standbys)
            ends = await self._ask(self._offsets.ends, sources + actives + standbys)
        except OffsetsUnknown:
            return  # the group has decided anew
        for tp in sources:
            position = first_position(tp, committed[tp], starts[tp], ends[tp])
            self.sources[tp] = Source(tp, self._processors[tp.topic], position, ends[tp])
            if begins:
                self._batch.advance(tp, position, 0)
        self._version.warn_of_late_views({tp for tp in sources if self.sources[tp].position > starts[tp]}, ends)
        self.replicas.hold(actives, standbys, starts, ends)  # not before it is known that this worker may serve them
        self._reached = {tp: source.position for tp, source in self.sources.items()}
        self.waiting.tell_progress()
        self._follow()
        log.info(
            "took over",
            sources=len(sources),
            tables=len(actives),
            standbys=len(standbys),
            to_restore=sum(max(0, r.target - r.position) for r in self.replicas.held.values() if r.active),
        )
        if begins:
            await self._flush()  # before any record: who takes over later sees that this version has begun

    def _follow(self) -> None:
        """Point the reader at everything held: sources wait until the tables beside them are restored."""
        positions = {tp: source.position for tp, source in self.sources.items()}
        positions |= {tp: replica.position for tp, replica in self.replicas.held.items()}
        if not positions:
            return
        self._reader.assign(positions)
        self._beginnings = Beginnings(positions)
        self._reader.pause(*self._at_rest())

    def _at_rest(self) -> set[TopicPartition]:
        """Sources beside an unrestored table, and changelogs that only we write now."""
        held = self.replicas.held.items()
        restoring = {tp.partition for tp, replica in held if replica.active and not replica.restored}
        sources = {tp for tp, source in self.sources.items() if tp.partition in restoring or source.due_at}
        return sources | {tp for tp, replica in held if replica.ours}

    def _advance_sources(self) -> None:
        """All that was fetched is handled: what else lies before the reader's position is no record.

        That is committed, too, with the next batch or in a quiet moment: when retention removes it, no record will
        seem to be lost.
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
        """The reader's position also passes what is no record: transaction markers, aborted and compacted ones."""
        for tp, replica in self.replicas.held.items():
            if replica.ours:
                continue
            if replica.advance(self._reader.position(tp), self._reader.highwater(tp)):
                at_rest = self._at_rest()
                self._reader.pause(*at_rest)
                self._reader.resume(*(self._reader.assignment() - at_rest))

    async def _ask(self, question: Callable[..., Any], *args: Any) -> Any:
        """A broker that is away or electing leaders is asked again until it answers.

        Raises OffsetsUnknown once the group has decided anew.
        """
        pause_s = RETRY_PAUSE_S
        while not self._told_anew:
            try:
                return await self._in_thread(question, *args)
            except OffsetsUnknown as failure:
                log.warning("the broker does not answer, asked again", question=question.__name__, reason=str(failure))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_RETRY_PAUSE_S)
        raise OffsetsUnknown("told anew")

    @property
    def _told_anew(self) -> bool:
        """Whether the group has decided anew, or the worker stops."""
        return self.should_stop or not self._inbox.empty()

    async def _in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def on_start(self) -> None:
        # after every 700 new objects, Python's default, it would search a batch's rows for cycles they can't have
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)
        sys.setswitchinterval(SWITCH_S)

    async def on_stop(self) -> None:
        if self._committing is not None:
            await asyncio.wait([self._committing])
        await self._reader.stop()
        self._thread.shutdown()


def _codecs(topology: Topology, processors: Sequence[Processor]) -> dict[str, RowCodec[Any]]:
    """By the table's name."""
    declared = {p.table.name: p.codec for p in processors if p.table is not None and p.codec is not None}
    return {topology.parked.name: PARKED_CODEC, **declared}
