"""The worker as its HTTP side sees it: `shared.http.node.Node` on top of the Faust app and its engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from shared.es.row import Row
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import CommandProducer
from shared.positions import Decided
from shared.settings import Settings
from shared.streams.app import WorkerApp
from shared.streams.internals import owners
from shared.topology import Table, Topic, Topology


class WorkerNode:
    def __init__(self, app: WorkerApp) -> None:
        self._app = app
        self._producer = CommandProducer(app.settings.bootstrap, [app.topology])

    @property
    def topology(self) -> Topology:
        return self._app.topology

    @property
    def settings(self) -> Settings:
        return self._app.settings

    def partition(self, key: bytes) -> int:
        return partition_of(key, self.topology.partitions)

    def owner(self, table: Table, partition: int) -> str | None:
        return self._owners(table).get(partition)

    def serves(self, table: Table, partition: int) -> bool:
        return self._app.engine.serves(table, partition)

    def read(self, table: Table, partition: int, key: bytes) -> Row[Any] | None:
        return self._app.engine.read(table, partition, key)

    def expect(self, aggregate_id: str, command_id: str) -> asyncio.Future[Decided]:
        return self._app.engine.expect(aggregate_id, command_id)

    def position(self, table: Table, partition: int) -> int:
        return self._app.engine.position(table, partition)

    async def progress(self) -> None:
        await self._app.engine.progress()

    def watch(self, table: Table, key: bytes) -> AbstractContextManager[asyncio.Event]:
        return self._app.engine.watch(table, key)

    def standby_lag(self, table: Table, partition: int) -> int | None:
        replica = self._app.engine.replica(table, partition)
        return None if replica is None else self._app.engine.lag(replica)

    def scan(self, table: Table, partition: int, after: bytes = b"") -> Iterator[tuple[bytes, Row[Any]]]:
        return self._app.engine.scan(table, partition, after)

    def keys_by(
        self, table: Table, partition: int, field: str, start: bytes = b"", descending: bool = False
    ) -> Iterator[bytes]:
        return self._app.engine.keys_by(table, partition, field, start, descending)

    async def append(self, topic: Topic, key: bytes, value: bytes) -> int:
        _, offset = await self._producer.send(topic.name, key, value)
        return offset

    def ready(self) -> bool:
        engine = self._app.engine
        return engine.assignment is not None and all(r.restored for r in engine.replicas.values() if r.active)

    def status(self) -> Mapping[str, Any]:
        engine = self._app.engine
        return {
            "service": self.topology.service,
            "instance": self.settings.instance,
            "url": self.settings.url,
            "ready": self.ready(),
            "idle": engine.assignment is not None and not engine.assignment.active,
            "owners": {
                table.name: {str(partition): url for partition, url in sorted(self._owners(table).items())}
                for table in self.topology.tables
            },
            "replicas": [
                {
                    "changelog": replica.changelog.topic,
                    "partition": replica.changelog.partition,
                    "role": "active" if replica.active else "standby",
                    "restored": replica.restored,
                    "position": replica.position,
                    "target": replica.target,
                }
                for _, replica in sorted(engine.replicas.items())
            ],
            "sources": [
                {"topic": tp.topic, "partition": tp.partition, "position": source.position}
                for tp, source in sorted(engine.sources.items())
            ],
            "handled": engine.handled,
            "commits": engine.commits,
            "aborts": engine.aborts,
        }

    def _owners(self, table: Table) -> Mapping[int, str]:
        return owners(self._app, self.topology.changelog(table).name)
