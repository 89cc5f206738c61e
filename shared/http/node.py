"""What the HTTP side needs of the worker it runs in; `shared.streams.node.WorkerNode` is one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from shared.es.row import Outcome, Row
from shared.settings import Settings
from shared.topology import Table, Topic, Topology


class Node(Protocol):
    """One worker of a service."""

    @property
    def topology(self) -> Topology: ...
    @property
    def settings(self) -> Settings: ...

    def partition(self, key: bytes) -> int:
        """The partition of every topic and table of the service that `key` lives in."""

    def owner(self, table: Table, partition: int) -> str | None:
        """URL of the worker that owns the partition; None while nobody does."""

    def serves(self, table: Table, partition: int) -> bool:
        """Whether this worker owns the partition and has it restored."""

    def read(self, table: Table, partition: int, key: bytes) -> Row[Any] | None:
        """The committed row of `key`; the partition must be served here."""

    def expect(self, aggregate_id: str, command_id: str) -> asyncio.Future[Outcome]:
        """Completes once that command is decided and committed here; ask before sending it."""

    async def append(self, topic: Topic, key: bytes, value: bytes) -> int:
        """Append a record; returns its offset after the broker's acknowledgement. Raises NotReady."""

    def ready(self) -> bool:
        """Whether every partition assigned here is served."""

    def status(self) -> Mapping[str, Any]:
        """Who owns what and how far each partition held here is."""
