"""The engine's own code against a simulated broker, through thousands of schedules that a real broker rarely produces.

Workers crash and freeze at any step of a flush, answers to commits are lost, the group rebalances, batches arrive in
pieces, stores lose their latest writes or break, changelogs are compacted; a broker that leads no more answers from its
memory, also the heartbeats of members that the group has gone on without; neighbours leave transactions open, and write
what can't be handled, commands under ids that are taken, and keys that look like the ids of parked ones; brokers refuse
events and rows as too large; clocks of brokers and workers differ and jump, machines are stopped, and days pass. Rows
that a worker serves are compared with their changelog throughout, and the log at the end is judged like a real one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from shared.domain.envelope import CommandEnvelope
from shared.domain.message import Event
from shared.domain.outcomes import Get, known
from shared.domain.row import Outcome
from shared.engine import asking as asking_module
from shared.engine import batch as batch_module
from shared.engine import engine as engine_module
from shared.engine import filling as filling_module
from shared.engine import lagging as lagging_module
from shared.engine import lease as lease_module
from shared.engine import pace as pace_module
from shared.engine import processors as processors_module
from shared.engine import take_over as take_over_module
from shared.engine.batch import Batch
from shared.engine.committer import Committer
from shared.engine.engine import Engine, Phase
from shared.engine.filling import Filling
from shared.engine.guards import GapGuard
from shared.engine.holdings import Holdings
from shared.engine.lease import Lease
from shared.engine.membership import Assignment
from shared.engine.processors import AggregateProcessor, RekeyProcessor, TimerProcessor
from shared.engine.reading import Reading
from shared.engine.sources import Source, SourceGone
from shared.engine.take_over import TakeOver
from shared.engine.versions import PositionsForgotten, TableChanged, VersionGuard
from shared.group import internals
from shared.group.app import LEASE_SHARE
from shared.kafka.murmur2 import partition_of
from shared.kafka.transactions import Record, RecordTooLarge, TransactionAborted, TransactionRefused
from shared.parking import parking as parking_module
from shared.runtime.clock import BrokersClock
from shared.runtime.positions import Place
from shared.tables.replicas import Replicas
from shared.tables.store import StoreFailed
from shared.topology.rekey import Rekey
from shared.topology.timer import Timer
from shared.topology.topics import Topic, Topology, outcomes_of
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountCharged, AccountOpened, PaymentReceived
from tests.accounts.domain.upcasters import UPCASTERS
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS
from tests.faults import broken, simulated
from tests.faults.harness import SHOWN
from tests.faults.load import POISONS, command
from tests.faults.log import Read
from tests.faults.run import new_seed
from tests.faults.simulated import (
    CLOCK,
    CUT_OFF,
    HALTS,
    LEADS,
    TRANSACTION_STEPS,
    Broker,
    Crash,
    FakeMember,
    FakeOffsets,
    FakeProducer,
    FakeReader,
    FakeStore,
    Fault,
    Machine,
    membership,
)
from tests.faults.truth import NO_LIMITS, Limits, fact_of, facts_of
from tests.faults.verdict import CHANGELOG, OUTCOMES, OUTPUTS, truth_of, wrong_log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

SCHEDULES, NOTICED_WITHIN = 250, 5_000
ACTIONS = 50
ENOUGH_TURNS = 2_000
TURNS_OF_A_STEP = 100
TURNS_TO_COMMIT = 3
PARTITIONS = 2
FORGED = b"account.charge", b"account.pay"  # under an id that is taken
POISONED, LEFT_OPEN = 0.05, 0.02
LIMITED = 0.2  # schedules in which brokers do not take all
LIMITS = Limits(amount_cents=9, events={"a-2": 1, "a-3": 1}, full=["a-3"])
SESSION_S, REBALANCE_S = 6.0, 15.0
LEASE_S = min(SESSION_S, REBALANCE_S) * LEASE_SHARE
ACTION_S = 0.5  # at most
BEATS = 0.25  # between two actions
TURNS_OF_A_BEAT = 2
ABSENT, USURPED = 0.1, 0.2  # at a rebalance
AWAKE = 0.5  # of those that are absent
WRONG_S = 600.0  # or a multiple, up to two hours: clocks of workers
SET_WRONG = 0.2  # of clocks, when a machine goes on
TURN_S = 1.0  # of the worker that ends the work
DAY_S, DAYS = 86_400.0, 0.3  # schedules in which days pass
NAMES = [*(f"a-{number}" for number in range(4)), f"a-1@{COMMANDS.name}"]  # as the id of what is parked of a-1 may be

COPIES = Topic("accounts.copies.v1")
TIMERS = Topic("accounts.timers.v1")
RINGS = Topic("accounts.rings.v1")
DELAY_S = 3.0
COPIED: list[type[Event]] = [AccountOpened, AccountCharged, PaymentReceived]
SIMULATED = Topology("accounts", (COMMANDS, EVENTS, COPIES, TIMERS, RINGS), (ACCOUNTS,), PARTITIONS)
PROCESSORS = (
    AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS),
    RekeyProcessor(
        Rekey(
            {COPIES: lambda event: [event.aggregate_id], TIMERS: lambda event: [f"timer-of-{event.aggregate_id}"]},
            source=EVENTS,
            events=COPIED,
            upcasters=UPCASTERS,
        )
    ),
    TimerProcessor(Timer(source=TIMERS, target=RINGS, delay_s=DELAY_S)),
)
SOURCES = [SIMULATED.parking.name, COMMANDS.name, EVENTS.name, TIMERS.name]
TABLES = {ACCOUNTS.name: CHANGELOG, outcomes_of(ACCOUNTS).name: OUTCOMES}
TOPICS = [topic.name for topic in SIMULATED.all_topics()]


class Unfinished(AssertionError):
    """The last worker could not finish the work."""


class Worker:
    """A process that may be dead, alive or frozen inside a flush; its stores outlive it."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.stores = {table.name: FakeStore(table.name) for table in SIMULATED.all_tables()}
        self.engine: Engine | None = None
        self.flight: asyncio.Future[None] | None = None
        self.usurped = False  # another process has its name, and it has not heard of that yet
        self._world = world
        self._starts = 0
        self.machine = Machine(world.wrong_clock())

    @property
    def member(self) -> str:
        return f"{self.name}.{self._starts}"

    @property
    def idle(self) -> bool:
        return self.engine is not None and self.flight is None and self.runs

    @property
    def runs(self) -> bool:
        return self.producer.halted != "freeze" and not self.machine.is_stopped

    @property
    def hears(self) -> bool:
        """Whether it answers the group, which goes on without those that only reach the broker that is cut off."""
        return self.idle and self.group.coordinator_id == LEADS

    @property
    def is_told(self) -> bool:
        return self.engine is not None and self.engine.has_rebalance

    @property
    def held_up(self) -> bool:
        return self.engine is not None and (self.flight is not None or self.producer.halted is not None)

    @property
    def is_committing(self) -> bool:
        return self.engine is not None and (self.engine._committer.task is not None or self.flight is not None)

    @property
    def is_settled(self) -> bool:
        """Whether it owns partitions, has restored them, and is not committing."""
        if self.engine is None or self.engine.phase is not Phase.RUNNING or self.engine._committer.task is not None:
            return False
        replicas = self.engine.holdings.replicas.held.values()
        return bool(replicas) and all(replica.restored for replica in replicas)

    def start(self) -> None:
        self._starts += 1
        broker = self._world.broker
        if self.machine.is_stopped:
            self.machine.go_on()
        clock = BrokersClock(self.machine.elapsed, self.machine.real)
        self.producer = FakeProducer(broker, self.name, self.machine.elapsed, clock.learn)
        self.engine = Engine(
            SIMULATED,
            PROCESSORS,
            stores=cast(Any, self.stores),
            reader=cast(Any, FakeReader(broker, self._world.chance)),
            new_consumer=cast(Any, None),
            producer=cast(Any, self.producer),
            offsets=cast(Any, FakeOffsets(broker)),
            alive=lambda: None,
            sign=broker.sign,
            lease_s=LEASE_S,
            clock=clock,
            in_thread=self._in_thread,
        )
        self.engine.membership.lease = Lease(LEASE_S, self.machine.elapsed, self.machine.real)
        self.group = FakeMember(broker, self.member)
        internals.note_proofs(self.group, "", LEASE_S / internals.PROOFS, self._extend_lease)
        internals.note_expulsion(self.group, self._hear_of_expulsion)

    def _extend_lease(self, sent: float) -> None:
        if self.engine is not None:
            self.engine.extend_lease(self.machine.elapsed(sent))

    def _hear_of_expulsion(self) -> None:
        self.usurped = False
        if self.engine is not None:
            self.engine.end_lease()

    def join(self, assignment: Assignment) -> None:
        assert self.engine is not None
        self.usurped = False
        self.group.join(assignment.generation)
        self.engine.joined(assignment, sent=self.machine.elapsed())

    def beat(self) -> None:
        if self.engine is not None and self.runs:
            self.group.beat()

    def crash(self) -> None:
        assert self.engine is not None
        self.producer.doom()
        self.group.end()
        for task in (self.flight, self.engine._committer.task):
            if task is not None:
                task.cancel()
        self.engine = None
        self.flight = None
        for store in self.stores.values():
            store.crash(self._world.chance)

    async def fly(self, step: Callable[[Engine], Awaitable[None]]) -> None:
        """Runs one step of the engine, to its end or to where it is held up."""
        assert self.engine is not None
        self.flight = asyncio.ensure_future(step(self.engine))
        await self._fly_on()

    async def thaw(self) -> None:
        if self.producer.halted:
            self.producer.thaw()
            self.producer.at_rest.acquire()
        await self._fly_on()

    async def _fly_on(self) -> None:
        turns = count(1)
        while self.flight is not None and not self.flight.done():
            await asyncio.sleep(0)
            if self.producer.halted == "freeze" or next(turns) > TURNS_OF_A_STEP:
                return
        await self._land()

    async def _land(self) -> None:
        assert self.engine is not None
        flight, self.flight = self.flight, None
        try:
            if flight is not None:
                await flight
            committing = self.engine._committer.task
            if committing is not None and committing.done() and isinstance(committing.exception(), Crash):
                raise Crash
        except (Crash, TransactionRefused, StoreFailed):
            self.crash()
        except (SourceGone, TableChanged):  # what a log looks like that was lost, to a broker that is cut off
            if self._world.broker.past is None:
                raise
            self.crash()

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Uses a thread only for a call that will be held up; nothing else runs meanwhile, so a seed decides all."""
        if not self.producer.will_halt():
            return call(*arguments)
        at_rest = self.producer.at_rest
        thread = self._world.threads.submit(call, *arguments)
        ended = asyncio.wrap_future(thread)
        thread.add_done_callback(lambda _: at_rest.release())
        at_rest.acquire()
        return await ended


class World:
    """One schedule: a broker, some workers, and a source of random choices."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker = Broker(TOPICS, PARTITIONS, self.chance)
        self.days = int(self.chance.random() < DAYS)
        self.workers = [Worker(self, f"w{number}") for number in range(self.chance.choice([1, 2, 3, 3]))]
        self.limits = LIMITS if self.chance.random() < LIMITED else NO_LIMITS
        if self.limits is LIMITS:
            self.broker.refuses = _is_too_large
        self.threads = ThreadPoolExecutor()
        self.answers: list[tuple[str, str, asyncio.Future[Any]]] = []
        self.untrue: list[str] = []
        self._sent: list[tuple[bytes, bytes]] = []
        CLOCK.now_s = 0.0

    async def run(self) -> None:
        for worker in self.workers:
            worker.start()
        await self.rebalance()
        often = {self.produce: 6, self.turn: 14, self.rebalance: 3, self.plan: 6, self.thaw: 2, self.crash: 1}
        often |= {self.disturb: 1, self.cut_off: 1, self.end_foreign: 1}
        often |= {self.set_clock: 1, self.stop_machine: 1, self.let_a_day_pass: self.days}
        for action in self.chance.choices([*often], [*often.values()], k=ACTIONS):
            CLOCK.now_s += self.chance.random() * ACTION_S
            if self.chance.random() < BEATS:
                await self._beat(self.workers)
            await action()
            self.untrue += self._untrue_rows()
        await self.settle()

    async def produce(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            key, value = self._next()
            name, command_id = key.decode(), json.loads(value)["command_id"]
            for worker in self.workers:
                if worker.engine is not None:
                    answers = worker.engine.holdings.answers
                    expected = answers.expect(name, command_id, partition_of(key, PARTITIONS))
                    self.answers.append((name, command_id, expected))
            poison = self.chance.choice(POISONS) if self.chance.random() < POISONED else lambda good: good
            state = self.chance.choice([None, None, "committed", "aborted"])
            if self.chance.random() < LEFT_OPEN:
                state = "open"
            self.broker.append(COMMANDS.name, poison((key, value)), state)

    def _next(self) -> tuple[bytes, bytes]:
        if self._sent and self.chance.random() < 0.15:
            key, value = self.chance.choice(self._sent)
            return key, value.replace(*FORGED) if self.chance.random() < 0.3 else value
        name = self.chance.choice(NAMES)
        kind = self.chance.choice(["account.open", "account.charge", "account.charge", "account.pay", "account.close"])
        data = {"amount_cents": self.chance.randint(1, 9)} if kind in ("account.charge", "account.pay") else {}
        self._sent.append((name.encode(), command(name, f"c{len(self._sent) + 1}", kind, data)))
        return self._sent[-1]

    async def turn(self) -> None:
        worker = self._one_of(lambda worker: worker.idle and worker.engine.assignment is not None)
        if worker:
            await worker.fly(Engine.step)
            self.untrue += self._untrue_positions(worker.engine)
        if self.broker.open and self.chance.random() < 0.2:
            self.broker.settle()

    def _untrue_positions(self, engine: Engine | None) -> Iterator[str]:
        """Readers at a position rely on the rows to include every record before it."""
        for place, position in engine.holdings.reached.items() if engine else ():
            first = next(self.broker.visible(place, self.broker.committed.get(place, 0)), None)
            if first is not None and first.offset < position:
                yield f"{place} is said to be at {position}, but {first.offset} is not committed"

    def _untrue_rows(self) -> Iterator[str]:
        """Readers of a worker that serves a partition rely on its rows to be the latest."""
        for worker in self.workers:
            if worker.engine is None or worker.is_committing or worker.usurped:
                continue  # no reader has been told of that commit yet
            if worker.machine.is_stopped:
                continue
            for partition in range(PARTITIONS):
                if worker.engine.serves(ACCOUNTS, partition):
                    latest = self.broker.latest(Place(CHANGELOG, partition))
                    if worker.stores[ACCOUNTS.name].rows(partition) != latest:
                        yield f"{worker.name} serves rows of partition {partition} that are not the latest"

    async def plan(self) -> None:
        """Plans a fault for the next commit of a worker."""
        worker = self._one_of(lambda worker: worker.idle)
        if worker:
            step = self.chance.choice([*TRANSACTION_STEPS, "after_offsets", "after_commit"])
            worker.producer.fault = Fault(step, self.chance.choice(["crash", *HALTS, "refuse"]))

    async def thaw(self) -> None:
        worker = self._one_of(lambda worker: worker.held_up)
        if worker:
            await worker.thaw()

    async def crash(self) -> None:
        worker = self.chance.choice(self.workers)
        if worker.engine is not None:
            worker.crash()
        else:
            worker.start()

    async def disturb(self) -> None:
        match self.chance.randint(0, 7):
            case 0:
                self.broker.time_out()
            case 1:
                await self._lose_power()
            case 2:
                await self._freeze_behind_offsets()
                await self.rebalance()
            case 3 | 4:
                self.broker.compact(CHANGELOG)
            case _:
                store = self.chance.choice(self.workers).stores[self.chance.choice(list(TABLES))]
                self.chance.choice([store.broken, store.full]).add(self.chance.randrange(PARTITIONS))

    async def cut_off(self) -> None:
        """One broker and some workers lose the others, or hear from them again."""
        if self.broker.past is not None:
            self.broker.past, found = None, [LEADS]
        else:
            self.broker.cut_off()
            found = [LEADS, CUT_OFF]
        for worker in self.workers:
            if worker.engine is not None:
                worker.group.coordinator_id = self.chance.choice(found)

    async def end_foreign(self) -> None:
        self.broker.end_foreign()

    async def set_clock(self) -> None:
        """That of a broker or of a worker, which may be wrong by hours."""
        if self.chance.random() < 0.5:
            self.broker.set_clock()
        else:
            self.chance.choice(self.workers).machine.ahead_s = self.wrong_clock()

    def wrong_clock(self) -> float:
        return WRONG_S * self.chance.randint(-12, 12)

    async def stop_machine(self) -> None:
        """One of the workers' machines is stopped by its hypervisor, or all that are go on, with their clocks set."""
        stopped = [worker.machine for worker in self.workers if worker.machine.is_stopped]
        for machine in stopped:
            machine.go_on()
            if self.chance.random() < SET_WRONG:
                machine.ahead_s = self.wrong_clock()
        worker = self._one_of(lambda worker: worker.idle)
        if worker and not stopped:
            worker.machine.stop()

    async def let_a_day_pass(self) -> None:
        """Or nearly one."""
        CLOCK.now_s += DAY_S * self.chance.uniform(0.9, 1.1)

    async def _freeze_behind_offsets(self) -> Worker | None:
        worker = self._one_of(lambda worker: worker.idle and worker.engine.assignment is not None)
        if worker is not None:
            worker.producer.fault = Fault("after_offsets", "freeze")
            for _ in range(TURNS_TO_COMMIT):
                if worker.idle:
                    await worker.fly(Engine.step)
        return worker

    async def _lose_power(self) -> None:
        """A worker dies when it has sent its offsets, and with it the broker; both start again."""
        worker = await self._freeze_behind_offsets()
        if worker is None:
            return
        self.broker.restart()
        if worker.engine is not None:
            worker.crash()
        worker.start()
        await self.rebalance()

    async def rebalance(self) -> None:
        """Workers that respond give up their partitions and get new ones; the others are out of the group unawares."""
        answering = [worker for worker in self.workers if worker.hears and self.chance.random() >= ABSENT]
        usurped = self.chance.choice(answering) if len(answering) > 1 and self.chance.random() < USURPED else None
        if usurped is not None:
            usurped.usurped = True
            answering.remove(usurped)
        for worker in answering:
            await self._tell(worker, None)
        answering = [worker for worker in answering if worker.idle]
        await self._wait_for([worker for worker in self.workers if worker not in (*answering, usurped)])
        self.broker.generation += 1
        self.broker.members = {worker.member for worker in answering}
        self.broker.heard |= dict.fromkeys(self.broker.members, CLOCK.now_s)
        owners = [self.chance.choice(answering) for _ in range(PARTITIONS)] if answering else []
        assignments = {worker: self._assignment(worker, owners) for worker in answering}
        for worker, assignment in assignments.items():
            worker.join(assignment)
        self.untrue += self._untrue_rows()
        for worker, assignment in assignments.items():
            await self._tell(worker, assignment)

    async def _wait_for(self, absent: list[Worker]) -> None:
        """Until the group has not heard of them for a session, or they have not joined again in time."""
        self.broker.rebalancing = True
        heard, ends = self.broker.heard, CLOCK.now_s + REBALANCE_S
        awake = [worker for worker in absent if self.chance.random() < AWAKE]
        while True:
            expire = max((heard.get(worker.member, -inf) + SESSION_S for worker in absent), default=-inf)
            if CLOCK.now_s >= min(expire, ends):
                break
            CLOCK.now_s = min(CLOCK.now_s + SESSION_S / 3, expire, ends)
            await self._beat(awake)
        self.broker.rebalancing = False

    async def _beat(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            worker.beat()
        for _ in range(TURNS_OF_A_BEAT):
            await asyncio.sleep(0)

    def _assignment(self, worker: Worker, owners: list[Worker]) -> Assignment:
        own = [partition for partition, owner in enumerate(owners) if owner is worker]
        rest = [partition for partition in range(PARTITIONS) if partition not in own and self.chance.random() < 0.3]
        changelogs = [SIMULATED.changelog(table).name for table in SIMULATED.all_tables()]
        return Assignment(
            frozenset(Place(topic, p) for topic in [*changelogs, *SOURCES] for p in own),
            frozenset(Place(topic, p) for topic in changelogs for p in rest),
            membership(self.broker, worker.member),
            self.broker.generation,
            worker.member,
        )

    async def _tell(self, worker: Worker, wish: Assignment | None) -> None:
        """Often in the middle of a turn, which then must not handle the records it fetched."""
        assert worker.engine is not None
        in_a_turn = not worker.is_told and worker.engine.phase is Phase.RUNNING and self.chance.random() < 0.5
        worker.engine._inbox.put_nowait((wish, asyncio.get_running_loop().create_future()))
        if in_a_turn:
            await worker.fly(Engine._turn)
        while worker.idle and worker.is_told:
            await worker.fly(Engine.step)

    async def settle(self) -> None:
        """All workers end; one that starts on what they left finishes the work.

        First what no open transaction of a neighbour holds up, while that stays open.
        """
        for worker in self.workers:
            if worker.held_up and self.chance.random() < 0.5:
                await worker.thaw()
            if worker.engine is not None:
                worker.crash()
        self.broker.past = None
        self.broker.time_out()
        self.broker.stale.clear()  # by another restart: a worker may not come back to clear its own
        last = self.chance.choice(self.workers)
        last.start()
        await self._finish(last)
        self.broker.end_foreign()
        await self._finish(last)
        self.last = last

    async def _finish(self, last: Worker) -> None:
        for _ in range(ENOUGH_TURNS):
            CLOCK.now_s += TURN_S
            if self._is_done() and last.is_settled:
                return
            if last.engine is None:
                last.start()
            elif last.engine.assignment is None:
                await self.rebalance()
            else:
                await last.fly(Engine.step)
        raise Unfinished(f"{last.name} does not finish")

    def _is_done(self) -> bool:
        waiting, committed = self.broker.records(SOURCES), self.broker.committed
        return all(not reads or reads[-1].offset < committed.get(place, 0) for place, reads in waiting.items())

    def _one_of(self, fits: Callable[[Any], bool]) -> Worker | None:
        fitting = [worker for worker in self.workers if fits(worker)]
        return self.chance.choice(fitting) if fitting else None

    def violations(self) -> Iterator[str]:
        truth = truth_of(self.broker.records([COMMANDS.name]), self.limits)
        outputs = self.broker.records(OUTPUTS)
        yield from self.untrue
        yield from wrong_log(truth, outputs, PARTITIONS)
        for partition in range(PARTITIONS):
            for name, changelog in TABLES.items():
                changes = {read.key: read.value for read in outputs[Place(changelog, partition)]}
                if self.last.stores[name].rows(partition) != changes:
                    yield f"the last store's partition {partition} of {name} is not what its changelog says"
            events, copies = (self._read(topic, partition) for topic in (EVENTS, COPIES))
            if [read.value for read in copies] != [read.value for read in events if _is_copied(read)]:
                yield f"{len(copies)} copies of {len(events)} events in partition {partition}"
        yield from self._wrong_timers()
        for name, command_id, answer in self.answers:
            if answer.done() and answer.exception() is None:
                outcome, id_ = answer.result().outcome, (name, command_id)
                decided = [*truth.decided.get(id_, ()), *filter(None, [truth.failures.get(id_)])]
                if (outcome.sequence, outcome.code) not in [(each.sequence, each.code) for each in decided]:
                    yield f"answered {outcome}, decided {decided}"

    def _wrong_timers(self) -> Iterator[str]:
        """Each timer rings once, in order, and not before it is DELAY_S old: by the clocks of the brokers, or truly."""
        copies, set_ = ([read.value for p in range(PARTITIONS) for read in self._read(t, p)] for t in (COPIES, TIMERS))
        if Counter(copies) != Counter(set_):
            yield f"{len(set_)} timers of {len(copies)} events"
        for partition in range(PARTITIONS):
            timers, rings = self._read(TIMERS, partition), self._read(RINGS, partition)
            if [timer.value for timer in timers] != [ring.value for ring in rings]:
                yield f"{len(rings)} of {len(timers)} timers in partition {partition} rang"
            for timer, ring in zip(timers, rings, strict=False):
                set_s, rang_s = (
                    self.broker.appended_s(Place(topic.name, partition), read.offset)
                    for topic, read in ((TIMERS, timer), (RINGS, ring))
                )
                early_s = timer.timestamp / 1000 + DELAY_S - self.broker.latest_time(rang_s)
                if early_s > 0 and rang_s - set_s < DELAY_S:
                    yield f"timer {timer.offset} of partition {partition} rang {early_s:.3f} s too early"

    def _read(self, topic: Topic, partition: int) -> list[Read]:
        return list(self.broker.visible(Place(topic.name, partition), 0))


def _is_too_large(record: Record) -> bool:
    if record.value and record.topic == EVENTS.name:
        return LIMITS.refuse_event(fact_of(record.value))
    if record.value and record.key and record.topic == CHANGELOG:
        return LIMITS.refuse_row(record.key.decode(), facts_of(record.value))
    return False


def _is_copied(event: Read) -> bool:
    return fact_of(event.value or b"").type in [each.TYPE for each in COPIED]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small batches, no pauses, no log."""
    monkeypatch.setattr(internals, "elapsed_s", CLOCK)
    for module in (engine_module, filling_module, lagging_module, take_over_module):
        monkeypatch.setattr(module, "elapsed_s", CLOCK)
    for module in (asking_module, engine_module, pace_module):
        monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(engine_module, "POLL_WAIT_MS", 0)
    monkeypatch.setattr(pace_module, "PAUSE", 0.0)
    monkeypatch.setattr(engine_module, "QUIET_S", 0.0)
    monkeypatch.setattr(pace_module, "POLL_RECORDS", 3)
    monkeypatch.setattr(batch_module, "FULL_RECORDS", 6)
    monkeypatch.setattr(batch_module, "FULL_AGE_S", inf)
    monkeypatch.setattr(filling_module, "SLICE_RECORDS", 2)
    monkeypatch.setattr(pace_module, "SLICE_S", 0.0)
    monkeypatch.setattr(parking_module, "PAGE_RECORDS", 2)
    configured = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**configured)


async def simulate(seed: int) -> list[str]:
    world = World(seed)
    with world.threads:
        try:
            await world.run()
        except (Unfinished, PositionsForgotten) as stopped:  # in no schedule does the group lose a position
            return [str(stopped)]
        finally:
            for worker in world.workers:
                worker.producer.doom()  # else its thread would never end
    return list(world.violations())


def first_violations(seeds: Iterable[int]) -> list[str]:
    """The seed and the violations of the first schedule that breaks the engine. Exceptions get a note of the seed."""

    async def run() -> list[str]:
        for seed in seeds:
            try:
                violations = await simulate(seed)
            except Exception as error:
                error.add_note(f"FAULTS_SEED={seed}")
                raise
            if violations:
                return [f"FAULTS_SEED={seed}", *violations]
        return []

    return asyncio.run(run())


@pytest.mark.parametrize("schedules", [SCHEDULES, pytest.param(400 * SCHEDULES, marks=pytest.mark.long)])
def test_no_schedule_breaks_the_engine(schedules: int) -> None:
    first = new_seed()
    violations = first_violations(range(first, first + schedules))
    assert not violations, "\n".join(violations[:SHOWN])


def test_a_worker_that_has_written_nothing_learns_the_brokers_time_before_a_timer_rings() -> None:
    async def rings(passed_s: float) -> int:
        world = World(seed=1)
        (worker, *_) = world.workers = world.workers[:1]
        worker.machine.ahead_s = 2 * 3_600
        for clock in world.broker.clocks:
            clock.ahead_s = 0.0
        worker.start()
        while worker.engine is None or worker.engine.assignment is None:
            await world.rebalance()
        world.broker.append(TIMERS.name, (b"a-1", b"a timer"), None)
        CLOCK.now_s += passed_s
        for _ in range(10):
            await worker.fly(Engine.step)
        return sum(len(world._read(RINGS, partition)) for partition in range(PARTITIONS))

    assert [asyncio.run(rings(passed_s)) for passed_s in (0.0, DELAY_S - 0.1, DELAY_S + 0.1)] == [0, 0, 1]


class Everybody(set[bytes]):
    def __contains__(self, _: object) -> bool:
        return True


async def _nothing(*_: object) -> None: ...


def _no_check_of_the_generation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(simulated, "_current", lambda _: Everybody())


def _pending_offsets_taken_for_none(patch: pytest.MonkeyPatch) -> None:
    def committed(self: FakeOffsets, group: str, places: Iterable[Place]) -> dict[Place, int | None]:
        pending = {place for transaction in self.broker.open.values() for place in transaction.offsets}
        known = {**self.broker.committed, **dict.fromkeys(pending)} if group == self.broker.group else {}
        return {place: known.get(place) for place in places}

    patch.setattr(FakeOffsets, "committed", committed)
    patch.setattr(VersionGuard, "refuse_changed_tables", _nothing)  # it would refuse rows without a position
    patch.setattr(VersionGuard, "refuse_if_it_would_repeat", _nothing)  # so would it
    patch.setattr(VersionGuard, "refuse_by_notes", lambda *_: None)  # nor would it copy again


def _aborted_offsets_left_pending(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeProducer, "forget_pending", lambda *_: None)


def _aborted_batch_not_done_again(patch: pytest.MonkeyPatch) -> None:
    async def go_on(self: Engine, aborted: TransactionAborted) -> None:
        if aborted.lost_membership:
            self.assignment = None
            self._suspend()

    patch.setattr(Engine, "_roll_back", go_on)


def _the_batch_before_not_seen(patch: pytest.MonkeyPatch) -> None:
    rows = Replicas.rows
    patch.setattr(Replicas, "rows", lambda self, table, partition, _, **how: rows(self, table, partition, {}, **how))


def _filled_on_after_a_failed_commit(patch: pytest.MonkeyPatch) -> None:
    async def ends(self: Engine) -> bool:
        committing, self._committer.task = self._committer.task, None
        if committing is not None:
            await asyncio.wait([committing])
        return True

    patch.setattr(Engine, "_settle", ends)
    patch.setattr(VersionGuard, "refuse_if_it_would_repeat", _nothing)  # it would refuse rows without a position


def _generations_missed_without_noticing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "joined", lambda self, _, sent: self.extend_lease(sent))


def _rows_served_whose_commit_is_in_doubt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holdings, "drop_changed", lambda *_: None)


def _markers_passed_before_the_records_in_front(patch: pytest.MonkeyPatch) -> None:
    advance = Filling.pass_empty

    def at_once(self: Filling, is_quiet: bool) -> None:
        batch, self.batch, pending, self.pending = self.batch, Batch(""), self.pending, Batch("")
        advance(self, is_quiet)
        self.batch, self.pending = batch, pending

    patch.setattr(Filling, "pass_empty", at_once)


def _records_set_aside_taken_for_handled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reading, "position", lambda self, place: self._reader.position(place))


def _keys_parked_under_the_ids_of_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(parking_module, "ends_with_topic", lambda _: False)


def _any_repeat_taken_for_the_same_command(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outcome, "is_of", lambda *_: True)


def _records_read_past_an_open_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Broker, "stable_end", lambda self, place: len(self.slots[place]))


def _any_coordinator_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(take_over_module, "uuid4", lambda: SimpleNamespace(hex="the same each time"))


def _any_end_of_a_changelog_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TakeOver, "_written_ends", lambda *_: {})


def _any_answer_to_a_heartbeat_believed(patch: pytest.MonkeyPatch) -> None:
    async def commits(*_: object, **__: object) -> bool:
        return True

    patch.setattr(internals, "_commits", commits)


def _a_lease_begins_with_the_answer(patch: pytest.MonkeyPatch) -> None:
    extend = Lease.extend
    patch.setattr(Lease, "extend", lambda self, _: extend(self, CLOCK.now_s))


def _members_of_a_rebalancing_group_are_sure_of_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeMember, "request_rejoin", lambda _: None)


def _expelled_workers_serve_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "end_lease", lambda _: None)


def _no_outcome_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(processors_module, "known", lambda *_: None)


def _timers_by_the_clock_of_the_worker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BrokersClock, "learn", lambda *_: None)


def _timers_from_the_future_waited_for(patch: pytest.MonkeyPatch) -> None:
    due = Source.due
    patch.setattr(Source, "due", lambda self, records, now, _: due(self, records, now, 0.0))
    patch.setattr(Source, "is_due", lambda self, now, _: self.due_at <= now)


def _leases_by_the_clock_that_a_hypervisor_stops(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "holds", property(lambda self: self._elapsed() < self._ends))


def _clocks_believed_that_were_set_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease_module, "SLEWED_S", inf)


def _outcomes_known_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(processors_module, "known", lambda get, command, at, _: known(get, command, at, cast(Any, inf)))


def _outcomes_known_by_the_time_of_handling(patch: pytest.MonkeyPatch) -> None:
    def now_known(get: Get, command: CommandEnvelope[Any], _: int, kept_ms: int) -> Outcome | None:
        return known(get, command, int((simulated.EPOCH_S + CLOCK.now_s) * 1000), kept_ms)

    patch.setattr(processors_module, "known", now_known)


def _a_record_blamed_for_its_batch(patch: pytest.MonkeyPatch) -> None:
    note = Filling.refused

    def at_once(self: Filling, refusal: RecordTooLarge) -> None:
        self.pending.count = 1
        note(self, refusal)

    patch.setattr(Filling, "refused", at_once)


def _refused_records_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Filling, "refused", lambda *_: None)


def _as_by(fault: Callable[[], None], owner: type, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Removes a guard as it is removed from real workers; here `name` of its owner is restored afterwards."""

    def remove(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(owner, name, getattr(owner, name))
        fault()

    remove.__name__ = fault.__name__
    return remove


MUTATIONS = (
    _no_check_of_the_generation,
    _pending_offsets_taken_for_none,
    pytest.param(_aborted_offsets_left_pending, marks=pytest.mark.long),  # in short, test_take_over notices
    _as_by(broken.stores_before_it_commits, Committer, "_send"),
    _as_by(broken.decides_before_it_is_restored, Replicas, "_open"),
    _as_by(broken.believes_any_beginning, GapGuard, "must_reread"),
    _as_by(broken.counts_what_it_fetched_as_done, Engine, "_flush"),
    _aborted_batch_not_done_again,
    _the_batch_before_not_seen,
    _filled_on_after_a_failed_commit,
    _generations_missed_without_noticing,
    _rows_served_whose_commit_is_in_doubt,
    _markers_passed_before_the_records_in_front,
    _records_set_aside_taken_for_handled,
    _no_outcome_known,
    _any_coordinator_believed,
    _any_end_of_a_changelog_believed,
    _any_answer_to_a_heartbeat_believed,
    pytest.param(_a_lease_begins_with_the_answer, marks=pytest.mark.long),  # in short, test_lease notices
    pytest.param(_members_of_a_rebalancing_group_are_sure_of_it, marks=pytest.mark.long),  # in short, test_internals
    _expelled_workers_serve_on,
    _records_read_past_an_open_transaction,
    _keys_parked_under_the_ids_of_others,
    _any_repeat_taken_for_the_same_command,
    _a_record_blamed_for_its_batch,
    _refused_records_forgotten,
    _timers_by_the_clock_of_the_worker,
    _timers_from_the_future_waited_for,
    _leases_by_the_clock_that_a_hypervisor_stops,
    pytest.param(_clocks_believed_that_were_set_back, marks=pytest.mark.long),  # in short, test_lease notices
    _outcomes_known_for_ever,
    _outcomes_known_by_the_time_of_handling,
)


NOTICED_AT: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    _the_batch_before_not_seen: 1_774,
    _pending_offsets_taken_for_none: 1_193,
    _generations_missed_without_noticing: 250,
    _expelled_workers_serve_on: 1_984,
    _any_answer_to_a_heartbeat_believed: 841,
    _any_coordinator_believed: 299,
    _any_end_of_a_changelog_believed: 78,
    _keys_parked_under_the_ids_of_others: 220,
    _leases_by_the_clock_that_a_hypervisor_stops: 305,
}
"""The seeds at which some were noticed last, where to begin: other code may move them, and the test takes longer."""


@pytest.mark.parametrize("remove_guard", MUTATIONS, ids=lambda mutation: mutation.__name__.strip("_"))
def test_the_simulation_notices_a_missing_guard(
    monkeypatch: pytest.MonkeyPatch, remove_guard: Callable[[pytest.MonkeyPatch], None]
) -> None:
    remove_guard(monkeypatch)
    first = NOTICED_AT.get(remove_guard, 0)
    assert first_violations(range(first, first + NOTICED_WITHIN))
