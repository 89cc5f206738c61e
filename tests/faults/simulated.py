"""A broker, its clients and a store in memory, which fail where a schedule says so. Time passes as `CLOCK` says."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, inf
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from aiokafka.errors import (
    IllegalGenerationError,
    NoError,
    NotCoordinatorForGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest
from pydantic_core import from_json

from shared.kafka.murmur2 import partition_of
from shared.kafka.offsets import OffsetsUnknown, Position
from shared.kafka.reader import OffsetGone
from shared.kafka.transactions import (
    BY_KEY,
    NO_ROW,
    Record,
    RecordTooLarge,
    TransactionAborted,
    TransactionRefused,
    group_metadata,
)
from shared.runtime.failpoints import STEPS
from shared.runtime.positions import Place
from shared.tables.indexing import entry, indexed
from shared.tables.store import FIRST_KEY, RowStore, StoreFailed
from tests.faults.log import Read, Records

TRANSACTION_STEPS = STEPS[:4]
LOST_FIRST = 0.05
LED, ASKED = 0.5, 0.5  # by the broker that is cut off: partitions of all, and questions of those about them
HALTS = ("freeze", "stall")
TOLD, NAMED = 0.5, 0.5  # what is too large: by the client at once, and with its topic the first time
LATE = 0.3  # answers to a member that wait to be read
EPOCH_S = 1_700_000_000.0
BROKERS = 3
DIFFER_S = 90.0  # clocks of brokers, at most, until one of them jumps
JUMP_S = 3_600.0
LEADS, CUT_OFF = 1, 2  # the ids of the group's coordinator, and of the broker that was it and has not heard
OK, UNKNOWN, STALE, REBALANCING, NO_COORDINATOR = (
    int(error.errno)
    for error in (
        NoError,
        UnknownMemberIdError,
        IllegalGenerationError,
        RebalanceInProgressError,
        NotCoordinatorForGroupError,
    )
)


class Clock:
    """How many seconds have passed for everyone."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


CLOCK = Clock()


class Machine:
    """Its clock is `ahead_s` ahead of true time, and can be set. A hypervisor can stop it; then it notices no time."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s
        self._stops: list[tuple[float, float]] = []

    @property
    def is_stopped(self) -> bool:
        return bool(self._stops) and self._stops[-1][1] == inf

    def stop(self) -> None:
        self._stops.append((CLOCK.now_s, inf))

    def go_on(self) -> None:
        """Its clock is set at once."""
        self._stops[-1] = self._stops[-1][0], CLOCK.now_s

    def elapsed(self, at_s: float | None = None) -> float:
        """Of the time that has passed, or had at `at_s`, all but that in which it was stopped."""
        now_s = CLOCK.now_s if at_s is None else at_s
        return now_s - sum(max(0.0, min(now_s, end_s) - began_s) for began_s, end_s in self._stops)

    def real(self) -> float:
        return EPOCH_S + CLOCK.now_s + self.ahead_s


class Crash(BaseException):
    """The worker's process dies here."""


@dataclass(eq=False, slots=True)
class Transaction:
    state: str = "open"
    offsets: dict[Place, int] = field(default_factory=dict)
    touched: set[Place] = field(default_factory=set)


class Slot(NamedTuple):
    """One offset of a partition: a record, or the marker of a transaction's end when `key` is None.

    timestamp: its leader's, in ms since the epoch. appended_s: when that truly was.
    """

    key: bytes | None
    value: bytes | None
    transaction: Transaction | None
    marker: bool = False
    timestamp: int = 0
    appended_s: float = 0.0


class Past(NamedTuple):
    """What one broker remembers that is cut off from the others, and has not heard that they lead in its place.

    ends: last stable offset and end, of the partitions that it led. committed, notes: of the group that it coordinated.
    """

    ends: Mapping[Place, tuple[int, int]]
    committed: Mapping[Place, int]
    notes: Mapping[Place, str]


class Broker:
    """Partitions, transactions and one consumer group; `others` holds the positions of other groups.

    past: while some questions are answered from it. refuses: whether a record is too large for its topic.
    clocks: of the brokers, of which each leads some partitions.
    """

    def __init__(self, topics: Iterable[str], partitions: int, chance: random.Random, group: str = "accounts") -> None:
        self.group = group
        self.others: dict[str, dict[Place, int]] = {}
        self.partitions = partitions
        self.chance = chance
        self.slots: dict[Place, list[Slot | None]] = {Place(t, p): [] for t in topics for p in range(partitions)}
        self.committed: dict[Place, int] = {}
        self.notes: dict[Place, str] = {}
        self.generation = 0
        self.members: set[str] = set()
        self.rebalancing = False
        self.heard: dict[str, float] = {}  # when the group last heard a member
        self.epochs: dict[str, int] = {}
        self.open: dict[str, Transaction] = {}
        self.foreign: list[tuple[Place, Transaction]] = []  # open ones, of other services
        self.stale: dict[str, dict[Place, int]] = {}  # aborted offsets that still count as pending, by their id
        self.past: Past | None = None
        self.clocks = [Machine(chance.uniform(-DIFFER_S, DIFFER_S)) for _ in range(BROKERS)]
        self.leaders = {place: chance.choice(self.clocks) for place in self.slots}
        self._set: list[tuple[float, float]] = [(0.0, clock.ahead_s) for clock in self.clocks]
        self.refuses: Callable[[Record], bool] = lambda _: False
        self._latest: dict[Place, tuple[int, Mapping[bytes | None, bytes | None]]] = {}

    def cut_off(self) -> None:
        """One of the brokers loses the others, which go on without it; clients may still find it for a while."""
        led = [place for place in self.slots if self.chance.random() < LED]
        ends = {place: (self.stable_end(place), len(self.slots[place])) for place in led}
        self.past = Past(ends, dict(self.committed), dict(self.notes))
        self.leaders |= {place: self.chance.choice(self.clocks) for place in led}

    def set_clock(self) -> None:
        """One of them, right again or wrong by up to an hour."""
        clock, most_s = self.chance.choice(self.clocks), self.chance.choice([DIFFER_S, JUMP_S])
        clock.ahead_s = self.chance.uniform(-most_s, most_s)
        self._set.append((CLOCK.now_s, clock.ahead_s))

    def appended_s(self, place: Place, offset: int) -> float:
        slot = self.slots[place][offset]
        assert slot is not None
        return slot.appended_s

    def latest_time(self, at_s: float) -> float:
        """The latest time that any of their clocks may have led to by then."""
        return EPOCH_S + at_s + max(ahead_s for set_s, ahead_s in self._set if set_s <= at_s)

    def asked(self) -> Past | None:
        """Who answers a question: now and then the broker that is cut off, while there is one."""
        return self.past if self.past and self.chance.random() < ASKED else None

    def ends(self, place: Place, past: Past | None = None) -> tuple[int, int]:
        """The last stable offset, and the end, as the broker says that was found for this partition."""
        if past and place in past.ends:
            return past.ends[place]
        return self.stable_end(place), len(self.slots[place])

    def member_code(self, coordinator: int, member: str, generation: int, *, writes: bool) -> int:
        """The error code for a heartbeat, or for a commit, which has to be written to the group's log."""
        if coordinator == CUT_OFF:
            return NO_COORDINATOR if writes else OK
        if member not in self.members:
            return UNKNOWN
        if generation != self.generation:
            return STALE
        self.heard[member] = CLOCK.now_s
        return REBALANCING if self.rebalancing and not writes else OK

    def append(self, topic: str, message: tuple[bytes | None, bytes | None], state: str | None) -> None:
        """state: of the transaction in which another service writes the record; None without a transaction."""
        key, value = message
        place = Place(topic, partition_of(key or b"", self.partitions))
        transaction = None if state is None else Transaction(state)
        self.stamp(place, key, value, transaction)
        if transaction is not None and state == "open":
            self.foreign.append((place, transaction))
        elif transaction is not None:
            self.slots[place].append(Slot(None, None, transaction, marker=True))

    def stamp(self, place: Place, key: bytes | None, value: bytes | None, transaction: Transaction | None) -> float:
        """Appends a record. Returns what time it is by its leader, as it is written, in seconds since the epoch."""
        timestamp = floor(self.leaders[place].real() * 1000)
        self.slots[place].append(Slot(key, value, transaction, timestamp=timestamp, appended_s=CLOCK.now_s))
        return timestamp / 1000

    def end_foreign(self) -> None:
        """Ends what other services have left open."""
        for place, transaction in self.foreign:
            transaction.state = self.chance.choice(["committed", "aborted"])
            self.slots[place].append(Slot(None, None, transaction, marker=True))
        self.foreign.clear()

    def end(self, transactional_id: str, state: str) -> None:
        """Commits or aborts the open transaction of this id."""
        transaction = self.open.pop(transactional_id, None)
        if transaction is None:
            return
        transaction.state = state
        for place in sorted(transaction.touched):
            self.slots[place].append(Slot(None, None, transaction, marker=True))
        if state == "committed":
            self.committed |= self.stale.get(transactional_id, {}) | transaction.offsets
        self.stale.pop(transactional_id, None)

    def sign(self, place: Place, note: str) -> None:
        """Commits a note of a member, without a position."""
        self.notes[place] = note

    def restart(self) -> None:
        """Aborts all open transactions, but takes their offsets for pending, as a coordinator may that loads twice."""
        stale = {name: transaction.offsets for name, transaction in self.open.items()}
        self.time_out()
        self.stale = stale

    def time_out(self) -> None:
        """Aborts all open transactions and fences their producers, as a coordinator does when they time out."""
        for transactional_id in list(self.open):
            self.epochs[transactional_id] += 1
            self.end(transactional_id, "aborted")

    def settle(self) -> None:
        """Pending offsets become final: a commit that was under way arrives, or its time is up."""
        for transactional_id in [name for name, transaction in self.open.items() if transaction.offsets]:
            if self.chance.random() < 0.5:
                self.end(transactional_id, "committed")
        self.time_out()

    def stable_end(self, place: Place) -> int:
        slots = self.slots[place]
        if not self.open and not self.foreign:
            return len(slots)
        unstable = (n for n, slot in enumerate(slots) if slot and slot.transaction and slot.transaction.state == "open")
        return next(unstable, len(slots))

    def visible(self, place: Place, start: int) -> Iterator[Read]:
        return self.committed_reads(place, start, self.stable_end(place))

    def written(self, place: Place) -> Iterator[Read]:
        """All committed records, including those that nobody can read until an earlier transaction has ended."""
        return self.committed_reads(place, 0, len(self.slots[place]))

    def committed_reads(self, place: Place, start: int, end: int) -> Iterator[Read]:
        for offset, slot in enumerate(self.slots[place][start:end], start):
            if slot is None or slot.marker:
                continue
            if slot.transaction is None or slot.transaction.state == "committed":
                yield Read(offset, slot.key, slot.value, slot.timestamp)

    def latest(self, place: Place) -> Mapping[bytes | None, bytes | None]:
        """The last committed value of each key. Whatever changes it makes the partition longer."""
        length, latest = self._latest.get(place, (0, {}))
        if length != len(self.slots[place]):
            latest = {read.key: read.value for read in self.written(place)}
            self._latest[place] = len(self.slots[place]), latest
        return latest

    def records(self, topics: Iterable[str]) -> Records:
        return {place: list(self.visible(place, 0)) for place in self.slots if place.topic in topics}

    def compact(self, topic: str) -> None:
        """Keeps the last committed value of each key, at its own offset."""
        for place in [place for place in self.slots if place.topic == topic]:
            kept = {read.key: read.offset for read in self.visible(place, 0)}
            for read in list(self.visible(place, 0)):
                if kept[read.key] != read.offset:
                    self.slots[place][read.offset] = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in the next commit of a worker.

    freeze: the process stops at that step until it is thawed. stall: only the committing thread does.
    """

    step: str
    kind: str


class FakeProducer:
    """`TransactionalProducer` over `Broker`."""

    def __init__(
        self,
        broker: Broker,
        transactional_id: str,
        elapsed: Callable[[], float] = CLOCK,
        learn: Callable[[float, float], None] = lambda *_: None,
    ) -> None:
        """learn: called with a time of a broker, and when that was asked for by `elapsed`."""
        self.fault: Fault | None = None
        self._broker = broker
        self._id = transactional_id
        self._elapsed = elapsed
        self._learn = learn
        self._stamped: list[float] = []
        self.halted: str | None = None
        """"freeze" or "stall", while a call is held up."""
        self.at_rest = threading.Semaphore(0)
        """Released when a call is held up, and, by whoever runs the call in a thread, when it ends."""
        self._epoch: int | None = None
        self._refused = ""  # the topic of a record that is too large
        self._reports_all = False
        self._go_on = threading.Event()
        self._doomed = False

    def will_halt(self) -> bool:
        return self.fault is not None and self.fault.kind in HALTS

    def thaw(self) -> None:
        self.halted = None
        self._go_on.set()

    def doom(self) -> None:
        """The process dies: a frozen call never goes on."""
        self._doomed = True
        self._go_on.set()

    def send(self, records: Sequence[Record]) -> None:
        self._transaction = self._begin()
        self.reach("before_produce")
        self._sent = self._elapsed()
        self._written = self._write(records, self._transaction)
        self._refused = next((record.topic for record in records if self._broker.refuses(record)), "")
        if self._refused and self._broker.chance.random() < TOLD:
            self._refuse()
        self.reach("after_produce")

    def commit(self, offsets: Mapping[Place, int], member: bytes) -> Mapping[Place, int]:
        self._answered()
        self.reach("before_offsets")
        self._check_fence()
        if self._refused:
            self._refuse()
        self._check_member(member)
        self._transaction.offsets |= offsets
        self.reach("after_offsets")
        self._check_fence()
        self._broker.end(self._id, "committed")
        self._reports_all = False
        self.reach("after_commit")
        return self._written

    def forget_pending(self, _partitions: Iterable[Place], member: bytes) -> None:
        self._begin()
        self._check_member(member)
        self._broker.end(self._id, "aborted")

    def written_ends(self, places: Iterable[Place]) -> dict[Place, int]:
        records = [Record(topic, NO_ROW, None, partition) for topic, partition in places]
        self._sent = self._elapsed()
        written = self._write(records, self._begin())
        self._answered()
        self._broker.end(self._id, "aborted")
        return written

    def _answered(self) -> None:
        for stamped in self._stamped:
            self._learn(stamped, self._sent)

    def reach(self, step: str) -> None:
        fault = self.fault
        if fault is None or fault.step != step:
            return
        self.fault = None
        match fault.kind:
            case "crash":
                raise Crash
            case "freeze" | "stall":
                self._go_on.clear()
                self.halted = fault.kind
                self.at_rest.release()
                self._go_on.wait()
                if self._doomed:
                    raise Crash
            case "refuse":
                if step != "after_commit":
                    self._broker.end(self._id, "aborted")
                raise TransactionAborted(f"{fault.kind} at {step}")

    def _begin(self) -> Transaction:
        """The first transaction of a producer takes over its id."""
        if self._epoch is None:
            self._epoch = self._broker.epochs[self._id] = self._broker.epochs.get(self._id, -1) + 1
            self._broker.end(self._id, "aborted")
        self._check_fence()
        self._broker.open[self._id] = Transaction()
        return self._broker.open[self._id]

    def _write(self, records: Sequence[Record], transaction: Transaction) -> dict[Place, int]:
        written: dict[Place, int] = {}
        self._stamped = []
        for record in records:
            self._check_fence()
            by_key = record.partition == BY_KEY
            home = partition_of(record.key or b"", self._broker.partitions) if by_key else record.partition
            place = Place(record.topic, home)
            transaction.touched.add(place)
            written[place] = len(self._broker.slots[place])
            self._stamped.append(self._broker.stamp(place, record.key, record.value, transaction))
        return written

    def _refuse(self) -> None:
        named = self._reports_all or self._broker.chance.random() < NAMED
        self._reports_all = True
        self._broker.end(self._id, "aborted")
        raise RecordTooLarge("too large", self._refused if named else "")

    def _check_member(self, member: bytes) -> None:
        if member not in _current(self._broker):
            self._broker.end(self._id, "aborted")
            raise TransactionAborted("another generation", lost_membership=True)

    def _check_fence(self) -> None:
        if self._broker.epochs[self._id] != self._epoch:
            raise TransactionRefused("fenced")


def membership(broker: Broker, member: str) -> bytes:
    """What a worker's transaction names when it is this member of the present generation."""
    return group_metadata("accounts", broker.generation, member)


def _current(broker: Broker) -> set[bytes]:
    return {membership(broker, member) for member in broker.members}


class FakeMember:
    """aiokafka's coordinator of a group member over `Broker`, as far as `internals` relies on it.

    An answer may wait to be read until the next beat, as in a process that is frozen.
    """

    group_id = "accounts"

    def __init__(self, broker: Broker, member_id: str) -> None:
        self.member_id = member_id
        self.coordinator_id = LEADS
        self._broker = broker
        self._client = self
        self._waits = False
        self._read = asyncio.get_running_loop().create_future()
        self.join(-1)

    def join(self, generation: int) -> None:
        self.generation = generation
        self._rejoin_needed_fut = asyncio.get_running_loop().create_future()

    def beat(self) -> None:
        """Reads the answers that wait; without any, sends a heartbeat."""
        if self._waits:
            self._read_all()
        elif self.generation >= 0:
            self._beat = asyncio.create_task(self._do_heartbeat())

    def _read_all(self) -> None:
        self._waits = False
        self._read.set_result(None)
        self._read = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """Its process dies."""
        self._read_all()

    async def _do_heartbeat(self) -> bool:
        request = HeartbeatRequest(self.group_id, self.generation, self.member_id)
        code = (await self._send_req(request)).error_code
        if code == REBALANCING:
            self.request_rejoin()
        elif code:
            self.join(-1)
        return code in (OK, REBALANCING)

    def request_rejoin(self) -> None:
        if not self._rejoin_needed_fut.done():
            self._rejoin_needed_fut.set_result(None)

    async def _send_req(self, request: Any) -> Any:
        return await self.send(self.coordinator_id, request)

    async def send(self, coordinator: int, request: Any) -> Any:
        writes = isinstance(request, OffsetCommitRequest)
        code = self._broker.member_code(coordinator, self.member_id, self.generation, writes=writes)
        if self._broker.chance.random() < LATE:
            self._waits = True
            await self._read
        return SimpleNamespace(topics=[("", [(0, code)])]) if writes else SimpleNamespace(error_code=code)


class FakeOffsets:
    """`Offsets` over `Broker`. When it raises for pending offsets, it settles them: a retry succeeds."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def positions(self, group: str, places: Iterable[Place]) -> dict[Place, Position]:
        if past := self.broker.asked():
            return {place: Position(past.committed.get(place), past.notes.get(place, "")) for place in places}
        found, notes = self.committed(group, places), self.broker.notes
        return {place: Position(offset, notes.get(place, "")) for place, offset in found.items()}

    def committed(self, group: str, places: Iterable[Place]) -> dict[Place, int | None]:
        wanted = list(places)
        if any(place in transaction.offsets for transaction in self.broker.open.values() for place in wanted):
            self.broker.settle()
            raise OffsetsUnknown("pending")
        if group == self.broker.group and any(
            place in stale for stale in self.broker.stale.values() for place in wanted
        ):
            raise OffsetsUnknown("aborted, and still pending")
        broker = self.broker
        known = broker.committed if group == broker.group else broker.others.get(group, {})
        return {place: known.get(place) for place in wanted}

    def starts(self, places: Iterable[Place]) -> dict[Place, int]:
        return dict.fromkeys(places, 0)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: f"id of {topic}" for topic in topics}

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        return {place: self.broker.ends(place, self.broker.asked())[1] for place in places}

    def any_records(self, places: Iterable[Place]) -> bool:
        return any(
            slot is not None and not slot.marker and (slot.transaction is None or slot.transaction.state == "committed")
            for place in places
            for slot in self.broker.slots[place]
        )

    stable_ends = ends

    def out_of_sync(self, _topics: Iterable[str]) -> dict[Place, tuple[int, int]]:
        return {}


class FakeReader:
    """`Reader` over `Broker`; each fetch brings a few records of a few partitions.

    The first fetch after a new assignment can lose its records, although the position has moved past them. It reads
    from the broker that is cut off what it has found there.
    """

    def __init__(self, broker: Broker, chance: random.Random) -> None:
        self._broker = broker
        self._chance = chance
        self._positions: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._loses: set[Place] = set()
        self._beyond: Sequence[Place] = ()
        self._past: Mapping[Place, Past | None] = {}

    async def stop(self) -> None: ...

    async def learn(self, topics: Collection[str]) -> None: ...

    def assign(self, positions: Mapping[Place, int]) -> None:
        self._positions = dict(positions)
        self._paused.clear()
        self._beyond = [place for place, at in positions.items() if at > len(self._broker.slots[place])]
        self._loses = {place for place in self._positions if self._chance.random() < LOST_FIRST}
        self._past = {place: self._broker.asked() for place in self._positions} if self._broker.past else {}

    def assignment(self) -> set[Place]:
        return set(self._positions)

    def seek(self, place: Place, offset: int) -> None:
        self._positions[place] = offset

    def pause(self, *places: Place) -> None:
        self._paused |= set(places)

    def resume(self, *places: Place) -> None:
        self._paused -= set(places)

    def paused(self) -> set[Place]:
        return set(self._paused)

    def highwater(self, place: Place) -> int:
        return self._ends(place)[1]

    def position(self, place: Place) -> int:
        return self._positions[place]

    async def getmany(self, *, max_records: int, **_: Any) -> dict[Place, list[Any]]:
        if self._beyond:  # librdkafka may have asked for it before it was paused
            raise OffsetGone(f"{self._beyond[0]}")
        fetched: dict[Place, list[Any]] = {}
        for place in self._chance.sample(sorted(self._positions), len(self._positions)):
            left = max_records - sum(map(len, fetched.values()))
            if place not in self._paused and left:
                self._fetch(place, min(self._chance.randint(1, 4), left), fetched)
                if place in self._loses:
                    self._loses.remove(place)
                    fetched.pop(place, None)
                    if self._chance.random() < 0.5:
                        self._fetch(place, 1, fetched)
        return fetched

    def _fetch(self, place: Place, most: int, fetched: dict[Place, list[Any]]) -> None:
        start = self._positions[place]
        stable, end = self._ends(place)
        if start > end:
            raise OffsetGone(f"{place}: {start}")
        end = stable
        for read in self._broker.committed_reads(place, start, stable):
            if len(fetched.get(place, ())) == most:
                end = read.offset
                break
            record = SimpleNamespace(topic=place.topic, partition=place.number, **read._asdict())
            fetched.setdefault(place, []).append(record)
        self._positions[place] = max(start, end)

    def _ends(self, place: Place) -> tuple[int, int]:
        past = self._past.get(place)
        return self._broker.ends(place, past if past is self._broker.past else None)


class FakeStore:
    """`RowStore` in memory. A crash loses the latest writes.

    Broken partitions can't be read, full ones not written; after a crash there is room again.
    """

    def __init__(self, table_name: str) -> None:
        self.table_name = table_name
        self.broken: set[int] = set()
        self.full: set[int] = set()
        self.opened: set[int] = set()
        self._applied: dict[int, list[tuple[dict[bytes, bytes | None], int | None]]] = {}
        self._rows: dict[int, dict[bytes, bytes]] = {}
        self._followed_until: dict[int, float] = {}

    def open(self, partition: int, _: str) -> int:
        self.opened.add(partition)
        applied = self._applied.setdefault(partition, [])
        self._rows.setdefault(partition, {})
        return next((offset for _, offset in reversed(applied) if offset is not None), -1)

    def close(self, partition: int) -> None:
        self.opened.discard(partition)

    def wipe(self, partition: int) -> None:
        self.close(partition)
        self.broken.discard(partition)
        self._applied[partition] = []
        self._rows[partition] = {}

    def get(self, partition: int, key: bytes) -> bytes | None:
        self._fail_if(partition in self.broken, partition)
        return self._rows[partition].get(key)

    def scan(self, partition: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        self._fail_if(partition in self.broken, partition)
        begin = max(after + b"\x00", FIRST_KEY)
        return iter(sorted((key, value) for key, value in self._rows[partition].items() if key >= begin))

    def keys_by(self, partition: int, index: str, start: bytes) -> Iterator[bytes]:
        self._fail_if(partition in self.broken, partition)
        states = ((key, from_json(value)["state"]) for key, value in self._rows[partition].items() if key >= FIRST_KEY)
        entries = sorted(entry(index, indexed(state, index), key) for key, state in states)
        return (each for each in entries if each > start)

    def apply(
        self, partition: int, rows: Mapping[bytes, bytes | None], changelog_offset: int | None, at: float = 0.0
    ) -> None:
        self._fail_if(partition in self.full, partition)
        self._followed_until[partition] = at
        self._applied[partition].append((dict(rows), changelog_offset))
        self._put(partition, rows)

    def followed_until(self, partition: int) -> float:
        return self._followed_until[partition]

    def crash(self, chance: random.Random) -> None:
        self.full.clear()
        self.opened.clear()
        for partition, applied in self._applied.items():
            del applied[chance.randint(0, len(applied)) :]
            self._rows[partition] = {}
            for rows, _ in applied:
                self._put(partition, rows)

    def rows(self, partition: int) -> dict[bytes, bytes]:
        return self._rows.get(partition, {})

    def _fail_if(self, fails: bool, partition: int) -> None:
        if fails:
            raise StoreFailed(cast(RowStore, self), partition, OSError())

    def _put(self, partition: int, rows: Mapping[bytes, bytes | None]) -> None:
        for key, value in rows.items():
            if value is None:
                self._rows[partition].pop(key, None)
            else:
                self._rows[partition][key] = value
