"""The worker as its HTTP side sees it: `shared.http.node.Node` on top of the Faust app and its engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import Any

import structlog

from shared.domain.decider import Decider
from shared.domain.errors import NotReady
from shared.domain.row import Row
from shared.engine.guards import Told
from shared.engine.holdings import Holdings
from shared.engine.sources import Source
from shared.engine.wiring import decider_of
from shared.group.app import WorkerApp
from shared.group.internals import awaited, members, owners
from shared.kafka.lookup import read_at
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import CommandProducer, ProducerFailed
from shared.runtime.clock import brokers_clock
from shared.runtime.machine import Growth, machine
from shared.runtime.positions import Committed, Place
from shared.runtime.routes import Role, Routes
from shared.runtime.settings import Settings
from shared.runtime.status import Machine, ReplicaStatus, SourceStatus, Status, Trouble
from shared.runtime.tracing import Tracing
from shared.tables.feed import Feed
from shared.tables.replicas import Replica, time_left_s
from shared.tables.tail import Changelogs
from shared.topology.topics import PARKED, Table, Topic, Topology

log = structlog.get_logger(__name__)

LOG_READERS = 4  # at once; each has its own connections and its own batch


class WorkerNode:
    def __init__(self, app: WorkerApp) -> None:
        self._app = app
        self._tables = {app.topology.changelog(table).name: table.name for table in app.topology.all_tables()}
        self._producer = self._new_producer()
        self._changelogs = Changelogs(app.new_consumer)
        self._log_readers = asyncio.Semaphore(LOG_READERS)
        self._growth = Growth()

    @property
    def topology(self) -> Topology:
        return self._app.topology

    @property
    def settings(self) -> Settings:
        return self._app.settings

    @property
    def tracing(self) -> Tracing | None:
        return self._app.tracing

    @property
    def routes(self) -> Routes | None:
        return self._app.routes

    @property
    def decider(self) -> Decider[Any, Any, Any] | None:
        return decider_of(self._app.processors)

    @property
    def _held(self) -> Holdings:
        return self._app.engine.holdings

    def partition(self, key: bytes) -> int:
        return partition_of(key, self.topology.partitions)

    def owner(self, table: Table, partition: int) -> str | None:
        return self._owners(table).get(partition)

    def members(self) -> frozenset[str]:
        return members(self._app)

    def serves(self, table: Table, partition: int) -> bool:
        return self._app.engine.serves(table, partition) and not self._is_changing(partition)

    def _is_changing(self, partition: int) -> bool:
        """Whether this version's turn is being given, and routes don't say so yet, or taken, and rows here may still
        lack what the other one has done.
        """
        turn = None if self.routes is None else self.routes.turn(partition)
        if turn is None:
            return False
        role = self._held.roles.get(partition, Role())
        return turn.number < role.number or (turn.version == self.topology.version and not role.acts)

    def state_type(self, table: Table) -> Any:
        return self._held.replicas.codec(table).state_type

    def read(self, table: Table, partition: int, key: bytes) -> Row[Any] | None:
        return self._held.replicas.read(table, partition, key)

    def expect(self, aggregate_id: str, command_id: str, partition: int) -> asyncio.Future[Committed]:
        return self._held.answers.expect(aggregate_id, command_id, partition)

    def position(self, table: Table, partition: int) -> int:
        return self._held.position(table, partition)

    def event_offsets(self, partition: int) -> Mapping[Place, int]:
        return self._held.event_offsets(partition)

    async def progress(self) -> None:
        await self._held.answers.progress()

    def watch(self, table: Table, key: bytes) -> AbstractContextManager[asyncio.Event]:
        return self._held.answers.watch(self.topology.changelog(table).name, key)

    async def standby_lag(self, table: Table, partition: int) -> int | None:
        return await self._app.engine.lags.of(table, partition)

    def keys(self, table: Table, partition: int, after: bytes = b"") -> Iterator[bytes]:
        return self._held.replicas.keys(table, partition, after)

    def keys_by(
        self, table: Table, partition: int, index: str, start: bytes = b"", descending: bool = False
    ) -> Iterator[bytes]:
        return self._held.replicas.keys_by(table, partition, index, start, descending)

    def has_entry(self, table: Table, partition: int, entry: bytes) -> bool:
        return self._held.replicas.has_entry(table, partition, entry)

    def changes(
        self, table: Table, after: Mapping[int, int | None], key: bytes | None = None
    ) -> AbstractAsyncContextManager[Feed]:
        changelog, codec = self.topology.changelog(table).name, self._held.replicas.codec(table)
        return self._changelogs.read(changelog, self.topology.partitions, codec, after, key)

    async def records(self, topic: Topic, partition: int, offsets: Sequence[int]) -> Sequence[bytes]:
        async with self._log_readers:
            return await read_at(self._app.new_consumer, Place(topic.name, partition), offsets)

    def append(
        self, topic: Topic, key: bytes, value: bytes, partition: int | None = None
    ) -> asyncio.Future[tuple[int, int]]:
        return self._producer.send(topic.name, key, value, partition)

    def _replace(self, failed: CommandProducer, error: ProducerFailed) -> None:
        if failed is self._producer:  # else another request has replaced it
            log.warning("a new producer takes the place of one that failed", reason=str(error))
            self._producer = self._new_producer()

    def _new_producer(self) -> CommandProducer:
        return CommandProducer(self.settings.bootstrap, [self.topology], on_failed=self._replace)

    def ready(self) -> bool:
        engine = self._app.engine
        return (
            engine.assignment is not None
            and (self.routes is None or self.routes.read)
            and engine.membership.in_lease
            and self._held.replicas.serves_all(engine.assignment.active)
            and not awaited(self._app)
        )

    def status(self) -> Status:
        engine, held, now = self._app.engine, self._held, brokers_clock.now()
        replicas = [self._replica(place, replica, now) for place, replica in sorted(held.replicas.held.items())]
        return Status(
            service=self.topology.service,
            instance=self.settings.instance,
            url=self.settings.url,
            ready=self.ready(),
            idle=engine.assignment is not None and not engine.assignment.active,
            owners={table.name: dict(sorted(self._owners(table).items())) for table in self.topology.shown_tables},
            replicas=replicas,
            sources=[self._source(place, source, now) for place, source in sorted(held.sources.items())],
            parked=self._parked(),
            troubles=[_trouble(each) for each in engine.watch.troubles],
            handled=held.handled,
            commits=held.commits,
            aborts=engine.aborts,
            waiting=held.answers.for_rows,
            clock_ahead_s=round(brokers_clock.ahead_s, 3),
            large_rows=dict(engine.large_rows),
            machine=self._machine(replicas),
        )

    def _machine(self, replicas: Sequence[ReplicaStatus]) -> Machine:
        size = sum(each.size_bytes or 0 for each in replicas)
        found = machine(self.settings.data_dir, size)
        held = [(each.table, each.partition, each.restored, each.size_bytes is None) for each in replicas]
        full_in_s = self._growth.full_in_s(time.monotonic(), found.disk_free_bytes, size, held)
        active_bytes = sum(each.size_bytes or 0 for each in replicas if each.role == "active")
        return found.model_copy(update={"full_in_s": full_in_s, "active_bytes": active_bytes})

    def _replica(self, place: Place, replica: Replica, now: float) -> ReplicaStatus:
        per_s, (rows, size_bytes) = replica.restored_per_s, _size(replica)
        return ReplicaStatus(
            table=self._tables[place.topic],
            partition=place.number,
            role="active" if replica.active else "standby",
            restored=replica.restored,
            position=replica.position,
            target=replica.target,
            to_restore=replica.to_restore,
            restored_per_s=None if per_s is None else round(per_s, 1),
            left_s=time_left_s(replica.to_restore, per_s),
            lag_records=replica.lag,
            lag_seconds=_age(replica.lag, replica.applied_until, now),
            rows=rows,
            size_bytes=size_bytes,
        )

    def _source(self, place: Place, source: Source, now: float) -> SourceStatus:
        lag, heat = 0 if source.held_back else self._app.engine.reading.lag(source), self._app.engine.heat
        total = heat.totals.get(place)
        return SourceStatus(
            topic=place.topic,
            partition=place.number,
            position=source.position,
            lag_records=lag,
            lag_seconds=_age(lag, source.handled_until, now),
            held_back=source.held_back,
            handled=total.records if total else 0,
            busy_s=round(total.seconds, 3) if total else 0.0,
            load=heat.load(place),
        )

    def _parked(self) -> dict[int, int]:
        """Parked keys by partition; a partition that can't be read at the moment is left out."""
        held, found = self._held, {}
        for place, replica in sorted(held.replicas.held.items()):
            if self._tables[place.topic] == PARKED and replica.ours:
                with suppress(NotReady):
                    found[place.number] = held.parked_keys(place.number)
        return found

    def _owners(self, table: Table) -> Mapping[int, str]:
        return owners(self._app, self.topology.changelog(table).name)


def _trouble(told: Told) -> Trouble:
    topic, partition = told.place or (None, None)
    for_s = round(time.monotonic() - told.since, 1)
    return Trouble(topic=topic, partition=partition, for_s=for_s, reason=told.reason)


def _size(replica: Replica) -> tuple[int | None, int | None]:
    """Rows and bytes of its store; None while it is being opened again."""
    try:
        return replica.store.size(replica.changelog.number)
    except NotReady:
        return None, None


def _age(lag: int, until: float, now: float) -> float | None:
    """Age in seconds of the newest handled record while others wait; None before the first."""
    if lag == 0:
        return 0.0
    return round(max(0.0, now - until), 3) if until else None
