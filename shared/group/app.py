"""The Faust app of a service's worker: its tables, the engine behind them and the HTTP side, on one loop."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, cast

import faust
from faust.app import BootStrategy
from faust.auth import Credentials, OAuthCredentials, SASLCredentials
from mode import Service

from shared.domain.row import Codec
from shared.engine.abilities import abilities_of
from shared.engine.engine import Engine
from shared.engine.processors import Processor
from shared.engine.wiring import codecs_of, wired
from shared.group.assignor import AbleAssignor
from shared.group.internals import (
    EngineTableManager,
    EngineTransport,
    EngineWorker,
    LogReader,
    keep_alive,
    leave_group,
    sign,
)
from shared.group.routes import RouteKeeper
from shared.group.store import HiddenStore
from shared.kafka.access import ANSWER_S
from shared.kafka.offsets import Offsets
from shared.kafka.reader import Reader
from shared.kafka.tokens import aiokafka_config
from shared.kafka.transactions import TransactionalProducer, producer_id
from shared.operations.provision import require_topics
from shared.runtime.logs import logging_config
from shared.runtime.routes import Routes
from shared.runtime.settings import Settings, SettingsError
from shared.runtime.tracing import tracing_of
from shared.tables.store import RowStore
from shared.topology.topics import KEPT_FOR_EVER, Table, Topology

LEASE_SHARE = 0.9  # of the time that the group waits for a silent worker
HEARTBEAT_S = 0.3  # at most; also how soon the others learn that a worker has left
HEARTBEATS = 5  # in a session, at least
REBALANCE_S = 15.0  # how long the group waits for a worker to release its partitions
MAX_POLL_INTERVAL_S = 60.0  # after this long without progress an engine gives up its partitions


class RowTable(faust.Table[bytes, bytes]):
    """A Faust table whose keys are the raw aggregate ids, so that key, partition and owner agree everywhere."""

    app: WorkerApp
    indexes: tuple[str | tuple[str, ...], ...] = ()
    state_type: Any = Any
    stored_ms: int = KEPT_FOR_EVER
    ends: bool = False

    def _new_store(self) -> HiddenStore:
        directory = self.app.settings.store_dir(self.app.topology.group)
        kinds = {"state_type": self.state_type, "stored_ms": self.stored_ms, "ends": self.ends}
        rows = RowStore(directory, self.name, self.indexes, **kinds)
        return HiddenStore(rows, "rocksdb://", self.app, self, table_name=self.name, key_type=bytes, value_type=bytes)


class WithoutWeb(BootStrategy):
    """Faust's own web server stays off: it would bind every interface, whatever `web_enabled` says."""

    enable_web = False


class WorkerApp(faust.App):
    """The Faust app of one service's worker; `faust -A services.<name>.app worker` runs it."""

    BootStrategy = WithoutWeb

    def __init__(
        self,
        topology: Topology,
        processors: Sequence[Processor],
        settings: Settings,
        http: Callable[[WorkerApp], Service],
    ) -> None:
        client = aiokafka_config(settings.bootstrap, settings.principal)
        super().__init__(
            topology.group,
            broker=[f"kafka://{broker}" for broker in settings.bootstrap.split(",")],
            datadir=settings.store_dir(topology.group) / "faust",
            canonical_url=settings.url,
            broker_credentials=_credentials(client),
            processing_guarantee="at_least_once",
            topic_allow_declare=False,
            topic_disable_leader=True,
            topic_partitions=topology.partitions,
            table_standby_replicas=settings.standbys,
            consumer_group_instance_id=f"{topology.group}-{settings.instance}",
            broker_session_timeout=settings.session_timeout_s,
            broker_heartbeat_interval=min(HEARTBEAT_S, settings.session_timeout_s / HEARTBEATS),
            broker_rebalance_timeout=REBALANCE_S,
            # the answer to a join may take as long as either: the group waits for its other members
            broker_request_timeout=max(REBALANCE_S, settings.session_timeout_s) + ANSWER_S / 2,
            broker_max_poll_interval=MAX_POLL_INTERVAL_S,
            stream_wait_empty=False,
            web_enabled=False,
            logging_config=logging_config(settings),
            PartitionAssignor=AbleAssignor,
            TableManager=EngineTableManager,
            Worker=EngineWorker,
        )
        self.topology = topology
        self.settings = settings
        self._client = client
        self.tracing = tracing_of(settings)
        self.processors = tuple(processors)
        self._working = wired(topology, self.processors)
        codecs = codecs_of(topology, self._working)
        self.row_tables: Mapping[str, RowTable] = {
            table.name: self._row_table(table, codecs.get(table.name)) for table in topology.all_tables()
        }
        sources = {topology.parking.name, *(processor.source.name for processor in self._working)}
        self.engine_topics = frozenset(sources.union(topology.changelog(each).name for each in topology.all_tables()))
        for source in sources:
            self.topics.add(self.topic(source, key_type=bytes, value_type=bytes, acks=False))
        self.abilities = abilities_of(topology, self.engine_topics, self._working)
        self.routes = Routes()
        self._http = http

    def _row_table(self, table: Table, codec: Codec[Any] | None) -> RowTable:
        """A new table that is registered with Faust."""
        made = RowTable(self, name=table.name, key_type=bytes, value_type=bytes, partitions=self.topology.partitions)
        made.indexes = table.indexes
        made.stored_ms = table.stored_ms
        made.ends = table.ends
        made.state_type = Any if codec is None else codec.state_type
        self.tables.add(made)
        return made

    async def on_first_start(self) -> None:
        needed = self.engine_topics.union(topic.name for topic in self.topology.all_topics())
        written = {topic.name for processor in self._working for topic in processor.writes} - needed
        # else the worker would idle and look ready, or would get rows of other partitions than their sources
        await asyncio.to_thread(require_topics, needed, self.topology.partitions, self.settings.bootstrap, written)
        _make_writable(self.settings.store_dir(self.topology.group))
        await super().on_first_start()

    async def on_start(self) -> None:
        await super().on_start()
        if self.tracing is not None:
            self.tracing.start()
        await self.add_runtime_dependency(self.engine)
        await self.add_runtime_dependency(self._keeper(self.routes))
        await self.add_runtime_dependency(self._http(self))

    async def on_stop(self) -> None:
        await leave_group(self)
        await super().on_stop()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.stop)

    def warm(self) -> set[int]:
        """The partitions of which this worker has a copy that is nearly up to date, where to make one takes long."""
        return self.engine.holdings.replicas.warm(self.settings.recovery_lag)

    @property
    def lease_s(self) -> float:
        """How long after a heartbeat no other worker owns our partitions: the group waits at least that long.

        The exception is a worker with the same instance name, which takes this worker's place at once.
        """
        return min(self.settings.session_timeout_s, REBALANCE_S) * LEASE_SHARE

    @cached_property
    def engine(self) -> Engine:
        settings, group = self.settings, self.topology.group
        return Engine(
            self.topology,
            self._working,
            stores={name: cast(HiddenStore, table.data).rows for name, table in self.row_tables.items()},
            reader=Reader(settings.bootstrap, group),
            new_consumer=self.new_consumer,
            producer=TransactionalProducer(settings.bootstrap, producer_id(group, settings.instance)),
            offsets=Offsets(settings.bootstrap),
            alive=lambda: keep_alive(self),
            sign=lambda place, note: sign(self, place, note),
            lease_s=self.lease_s,
            tracing=self.tracing,
            routes=self.routes if self._acts else None,
            loop=self.loop,
            beacon=self.beacon,
        )

    def _keeper(self, routes: Routes) -> RouteKeeper:
        def owned() -> list[int]:
            served = self.engine.serves
            return [n for n in range(self.topology.partitions) if served(self.topology.shown_tables[0], n)]

        url, bootstrap = self.settings.url, self.settings.bootstrap
        numbers = range(self.topology.partitions if self._acts else 1)
        return RouteKeeper(
            self.topology, routes, self.new_consumer, bootstrap, owned, url, numbers, loop=self.loop, beacon=self.beacon
        )

    @property
    def _acts(self) -> bool:
        """Whether it does more than read, so that only one version may in each partition."""
        return any(each.writes for each in self._working)

    def new_consumer(self, fetch_bytes: int = 2**20, **other: Any) -> LogReader:
        """other: options of aiokafka, in the place of the usual ones."""
        return LogReader(
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=fetch_bytes,
            **{"isolation_level": "read_committed", **self._client, **other},
        )

    def _new_transport(self) -> EngineTransport:
        return EngineTransport(self.conf.broker_consumer, self)


def _make_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(b"full?")
    except OSError as error:
        fix = "set ONEFOLD_DATA_DIR to a folder that this user may write"
        if error.errno == errno.ENOSPC:
            fix = "make room on its disk, or set ONEFOLD_DATA_DIR to a folder on another"
        raise SettingsError(f"{folder} cannot be written: {error.strerror}; fix: {fix}") from error


def _credentials(client: Mapping[str, Any]) -> Credentials | None:
    """client: `aiokafka_config`."""
    tls = client.get("ssl_context")
    if tokens := client.get("sasl_oauth_token_provider"):
        return OAuthCredentials(oauth_cb=tokens, ssl_context=tls)
    if mechanism := client.get("sasl_mechanism"):
        login = {"username": client["sasl_plain_username"], "password": client["sasl_plain_password"]}
        return SASLCredentials(**login, mechanism=mechanism, ssl_context=tls)
    return None
