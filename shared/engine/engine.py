"""The batch engine: runs the pure part on every waiting record of its partitions and commits the results together.

A single task owns the reader, so positions never move under it. The consumer group says which partitions are ours
(`assign`, `release`); the engine restores their tables from the changelogs, reads their sources from the committed
offsets, and commits rows, events, dead letters and offsets in one transaction. After a failed commit it starts again
from what the broker has committed, the only state it trusts.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer
from mode import Service

from shared.domain.errors import RowUnreadable
from shared.engine.abilities import Abilities, shown
from shared.engine.asking import Asking, InThread
from shared.engine.batch import Batch
from shared.engine.beginning import Beginning
from shared.engine.committer import Aborted, Committed, Committer, StoreBroken, TooLarge, Written
from shared.engine.filling import Filling
from shared.engine.guards import TopicGone, TopicGuard
from shared.engine.heat import Heat
from shared.engine.holdings import Holdings
from shared.engine.lags import Lags
from shared.engine.membership import Assignment, Membership
from shared.engine.pace import RETRY_PAUSE_S, Pace
from shared.engine.processors import Processor
from shared.engine.reading import Reading
from shared.engine.retries import OperatorRequests
from shared.engine.sources import SourceGone
from shared.engine.take_over import TakeOver
from shared.engine.tracing import Tracer
from shared.engine.turns import Turns
from shared.engine.versions import VersionGuard, VersionRefused
from shared.engine.watch import Watch
from shared.kafka.ends import LeaderEnds
from shared.kafka.offsets import AccessRefused, Offsets, OffsetsUnknown
from shared.kafka.reader import OffsetGone, Reader, ReadRefused
from shared.kafka.transactions import TransactionalProducer, TransactionRefused
from shared.operations.provision import TopologyMismatch
from shared.runtime import failpoints
from shared.runtime.clock import BrokersClock, brokers_clock, elapsed_s
from shared.runtime.positions import Place
from shared.runtime.routes import Routes
from shared.runtime.tracing import Tracing
from shared.tables.store import RowStore, StoreFailed
from shared.topology.topics import Table, Topology

log = structlog.get_logger(__name__)

POLL_WAIT_MS = 100
DUE_WAIT_MS = 5  # while a batch waits for its commit, or records for theirs
REBALANCE_WAIT_S = 1.0
QUIET_S = 5.0
MEASURE_S = 1.0  # between two questions for the ends of what standbys and restores follow
WATCH_S = 10.0
SWITCH_S = 0.0005  # how soon the commit's thread hands back the interpreter; Python's default is 5 ms, each time
COLLECT_AFTER = 50_000  # live allocations between two garbage collections, which then take a few milliseconds each


class Phase(Enum):
    """What the loop does next, unless a rebalance waits."""

    SUSPENDED = auto()
    """The group has given nothing to this worker, or has taken it back: wait."""

    TAKING_OVER = auto()
    """Find out where the assigned partitions are: at first, and after whatever leaves that in doubt."""

    IDLE = auto()
    """There are more workers than partitions, or others that can handle more: wait."""

    RUNNING = auto()
    """Read, fill the batch, commit it."""


class WorkCancelled(Exception):
    """The engine's task was cancelled, and nobody stops the worker.

    Operator action: start the worker again. If it happens again, the log's traceback says what was cancelled.
    """


class Engine(Service):
    """One per worker process. holdings: for reading. aborts: commits that failed since the start."""

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
        sign: Callable[[Place, str], None],
        lease_s: float,
        clock: BrokersClock = brokers_clock,
        in_thread: InThread | None = None,
        tracing: Tracing | None = None,
        routes: Routes | None = None,
        **kwargs: Any,
    ) -> None:
        """alive: called often, while the work goes on. sign: see TakeOver. in_thread: calls what blocks, if not in a
        thread of its own. routes: None where a version stands alone.
        """
        super().__init__(**kwargs)
        self.phase = Phase.SUSPENDED
        self.assignment: Assignment | None = None
        self.aborts = 0
        self.membership = Membership(lease_s)
        self.holdings = holdings = Holdings(topology, processors, stores)
        self._alive = alive
        self._clock = clock
        self._steps = 0
        self._idle: Abilities | None = None  # while it has no partition: what it lacks
        self._inbox: asyncio.Queue[tuple[Assignment | None, asyncio.Future[None]]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        in_thread, topic_guard = in_thread or self._in_thread, TopicGuard()
        ask = Asking(in_thread, lambda: self.should_stop or self.has_rebalance)
        version = VersionGuard(topology, holdings.processors, offsets, ask)
        self._pace = Pace()
        self.reading = Reading(reader, holdings)
        self._take_over = TakeOver(
            holdings, offsets, producer, self.reading, version, topic_guard, ask, sign, clock, routes
        )
        self._beginning = Beginning(holdings, version, self.reading.go_to)
        requests = OperatorRequests(topology, holdings.sources, new_consumer)
        self._tracer = None if tracing is None else Tracer(tracing, topology)
        self._filling = Filling(
            holdings, self.reading, requests, self._pace, clock, lambda: self.has_rebalance, alive, self._tracer
        )
        self._turns = Turns(holdings, self._filling, routes, offsets, ask)
        self._committer = Committer(producer, in_thread, holdings.events_written, self._committed)
        self.watch = Watch(holdings, offsets, version, topic_guard, ask)
        self.lags = Lags(holdings, LeaderEnds(new_consumer), lambda: self.membership.in_lease)

    # Called by the group's consumer, on the worker's loop.

    async def release(self) -> None:
        """Commit finished work and give up every partition. Returns once nothing more will be written."""
        await self._submit(None)

    async def assign(self, assignment: Assignment) -> None:
        """Take over these partitions; their restore continues after this returns."""
        await self._submit(assignment)

    async def leave(self) -> None:
        """Before this worker leaves the group: stop answering requests, so that the next owner may, and release all."""
        self.membership.leave()
        self.holdings.answers.end()
        await self.release()

    async def _submit(self, assignment: Assignment | None) -> None:
        if self.should_stop or not self.started:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((assignment, done))
        await done

    def joined(self, assignment: Assignment, sent: float) -> None:
        """The group has counted this worker as a member since `sent` (`elapsed_s`); `assign` follows later."""
        if not self.membership.joined(assignment, sent):
            self.holdings.drop()
        self.holdings.serve_only(assignment.active)

    def extend_lease(self, sent: float) -> None:
        """The group's log has this worker as a member that was there at `sent` (`elapsed_s`): no other worker owns our
        partitions yet.
        """
        self.membership.lease.extend(sent)

    def end_lease(self) -> None:
        """The group has gone on without this worker: rows read here may be old until it is a member again."""
        self.membership.lease.end()

    @property
    def has_rebalance(self) -> bool:
        """Whether one waits to be handled."""
        return not self._inbox.empty()

    # Asked by the HTTP side.

    def serves(self, table: Table, partition: int) -> bool:
        """Whether rows read here now are the latest."""
        replica = self.holdings.replicas.of(table, partition)
        return replica is not None and replica.ours and self.membership.in_lease

    @property
    def heat(self) -> Heat:
        return self._filling.heat

    @property
    def large_rows(self) -> Mapping[str, int]:
        """Bytes of the largest row written here since the start, by changelog, where it was a large one."""
        return self._committer.growth.largest

    # The one task.

    @Service.task
    async def _run(self) -> None:
        try:
            while not self.should_stop:
                await self.step()
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
            while self.has_rebalance:  # their callers would wait for ever
                _answer(self._inbox.get_nowait()[1])

    async def step(self) -> None:
        self._steps += 1
        if self.has_rebalance or self.phase is Phase.SUSPENDED:
            await self._rebalance()
            return
        self._alive()
        match self.phase:
            case Phase.TAKING_OVER:
                await self._begin()
            case Phase.IDLE:
                await asyncio.sleep(POLL_WAIT_MS / 1000)
            case Phase.RUNNING:
                await self._turn()

    async def _rebalance(self) -> None:
        # the assignment stays in the inbox until then: a commit that fails now must not wait for absent brokers
        await self._flush()
        await self._settle()
        try:
            assignment, done = await asyncio.wait_for(self._inbox.get(), timeout=REBALANCE_WAIT_S)
        except TimeoutError:
            self._alive()
            return
        try:
            self.assignment = assignment
            if assignment is None:
                self._suspend()
            else:
                await self._begin()
        finally:
            _answer(done)

    def _suspend(self) -> None:
        """Stop processing, until partitions are taken over."""
        self.phase = Phase.SUSPENDED if self.assignment is None else Phase.TAKING_OVER
        self._filling.drop()
        self._beginning.drop()
        self.holdings.suspend()
        self.reading.end()

    async def _begin(self) -> None:
        """Take over the assignment, unless something comes first."""
        assert self.assignment is not None
        self._suspend()
        self.holdings.serve_only(self.assignment.active)
        try:
            plan = await self._take_over.plan(self.assignment)
        except OffsetsUnknown:
            return  # a rebalance or a stop comes first
        self.holdings.take(plan)
        self._beginning.expect(plan)
        self.watch.uncommitted.keep_only(self.holdings.sources)
        self.reading.begin()
        held = self.holdings.replicas.held
        self.phase = Phase.RUNNING if held or self.holdings.sources else Phase.IDLE
        log.info(
            "took over",
            sources=len(plan.positions),
            tables=len(plan.actives),
            standbys=len(plan.standbys),
            to_restore=self.holdings.replicas.to_restore,
        )
        self._tell_if_idle(self.assignment)

    def _tell_if_idle(self, assignment: Assignment) -> None:
        """A rebalance that leaves it idle is no news."""
        before, self._idle = self._idle, None if assignment.active else assignment.lacks
        if self._idle is None or self._idle == before:
            return
        if self._idle:
            log.warning("idle: workers of another release can handle more", lacks=shown(self._idle))
        else:
            log.info("idle: more workers than partitions", partitions=self.holdings.topology.partitions)

    async def _turn(self) -> None:
        try:
            for failure in self.holdings.replicas.failures:
                raise failure
            await self._work()
        except StoreFailed as failure:
            if await self._settle():
                self._heal(failure)
        except OffsetsUnknown:
            return  # a rebalance or a stop comes first
        except OffsetGone as gone:
            log.warning("an offset can't be read, the partitions are taken over again", reason=str(gone))
            await self._flush()
            await self._settle()
            await asyncio.sleep(RETRY_PAUSE_S)
            self._suspend()

    async def _work(self) -> None:
        if self._committer.has_result and not await self._settle():
            return
        self.reading.resume_due(self._clock.now(), elapsed_s())
        if self._beginning.begin(self._filling):
            await self._flush()
            return
        if await self._change_turns():
            return
        await self._filling.end_expired()
        wait_ms = DUE_WAIT_MS if self._filling.batch or self.reading.sets_aside else POLL_WAIT_MS
        fetched = await self.reading.fetch(wait_ms, self._pace.at_most(fills_batch=self.reading.fills_batch))
        for place, records in fetched.items():
            if replica := self.holdings.replicas.held.get(place):
                replica.apply(records)
                await self._pace.yield_to_http()
            elif source := self.holdings.sources.get(place):
                await self._filling.process(source, records)
            if self.has_rebalance:
                return  # everything fetched but not handled is read again after the take-over
        if self.holdings.replicas.restoring or (self.assignment is not None and self.assignment.standby):
            self.reading.follow_changelogs()
        self._filling.pass_empty(is_quiet=self._is_quiet)
        batch, is_committing = self._filling.batch, self._committer.is_committing
        if batch and self._pace.is_due(batch, self.reading.fetched, is_committing):
            await self._flush()

    async def _change_turns(self) -> bool:
        """Give turns, or take them, in a commit of their own; all is taken over again then. Whether there were any."""
        given, taken = self._turns.to_give(), await self._turns.to_take()
        if not given and not taken:
            self._turns.renew()
            return False
        await self._flush()
        if not await self._settle():
            return True
        given = self._turns.to_give()  # another switch may have been read meanwhile
        self._turns.take(taken)
        self._turns.give(given)
        failpoints.reached("before_turn")
        await self._flush()
        failpoints.reached("in_turn")
        if await self._settle():
            failpoints.reached("after_turn")
            self.holdings.answers.decide_only({*range(self.holdings.topology.partitions)} - {*given})
            self._suspend()
        return True

    @property
    def _is_quiet(self) -> bool:
        return self._committer.task is None and time.monotonic() - self.holdings.committed_at >= QUIET_S

    # Committing.

    async def _flush(self) -> None:
        """Start to commit the batch, once the previous one is committed. The next one is filled meanwhile."""
        await self._settle()
        batch = self._filling.hand_over()
        if batch and self.assignment is not None:
            await self._committer.begin(batch, self.assignment.member)

    async def _settle(self) -> bool:
        """Wait for the commit under way. False if it failed: all is to be taken over again, from what is committed."""
        match await self._committer.result():
            case None | Committed():
                return True
            case Aborted() as aborted:
                if aborted.unwritable is not None:  # tried again, each change is checked, and its record parked
                    self._filling.careful.add(aborted.unwritable)  # other partitions may commit before
                await self._roll_back(aborted)
            case TooLarge(refusal):
                self._filling.refused(refusal)
                self._pace.one_by_one()
                await self._roll_back(Aborted(str(refusal)))
            case StoreBroken(failure):
                self._heal(failure)
        return False

    def _committed(self, batch: Batch, written: Written, took_s: float) -> None:
        self._pace.succeeded()
        self._filling.committed(batch)
        self.watch.uncommitted.ended(batch.offsets)
        self.holdings.committed(batch, written)
        if self._tracer is not None:
            self._tracer.committed(batch, took_s)
        self._pace.pause(took_s, batch, self._filling.batch)

    async def _roll_back(self, aborted: Aborted) -> None:
        self.aborts += 1
        pause_s, pending = self._pace.failed(), self._filling.pending
        log.warning("batch not committed, its records are read again", reason=aborted.reason, pause_s=pause_s)
        self.watch.uncommitted.note(pending.offsets, f"batches can't be committed: {aborted.reason}", time.monotonic())
        self._take_over.may_be_pending = True
        self.holdings.drop_changed(pending)
        if aborted.lost_membership:
            self.watch.uncommitted.keep_only(())
            self.assignment = None  # the group will assign again
            self.holdings.drop()
        elif not self.should_stop and not self.has_rebalance:
            await asyncio.sleep(pause_s)
        self._suspend()

    def _heal(self, failure: StoreFailed) -> None:
        """Wipe the broken replica and drop all uncommitted work; all is taken over again.

        A replica that breaks while it is filled from an empty store stops the worker: the next one would break, too.
        """
        replica = self.holdings.replicas.broken(failure)
        if replica is None or not (replica.restored or replica.kept) or self.assignment is None:
            raise failure
        log.error("a local store failed and is wiped; its changelog restores it", store=str(failure))
        self.holdings.replicas.wipe(replica)
        self.holdings.drop_changed(self._filling.pending)
        self._suspend()

    async def _in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    # Beside it.

    @Service.task
    async def _measure(self) -> None:
        while not self.should_stop:
            await self.sleep(MEASURE_S)
            self.lags.measure()

    @Service.task
    async def _look_on(self) -> None:
        """Tells what holds records back; stops a worker that does, or whose topics are gone, whatever its task does."""
        while not self.should_stop:
            await self.sleep(WATCH_S)
            await self.watch.look(self._steps)

    async def on_start(self) -> None:
        # Python's default, every 700 new objects, would search a batch's rows for cycles that they can't have
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)
        sys.setswitchinterval(SWITCH_S)

    async def on_stop(self) -> None:
        await self._committer.stop()
        await self.lags.stop()
        await self.reading.stop()
        self._thread.shutdown()


def _answer(done: asyncio.Future[None]) -> None:
    if not done.done():  # the caller may have been cancelled
        done.set_result(None)
