"""What the HTTP side needs of the worker it runs in; `shared.streams.node.WorkerNode` is one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from pydantic import BaseModel

from shared.changes import Feed
from shared.es.row import Row
from shared.positions import Committed
from shared.settings import Settings
from shared.status import Status
from shared.topology import Table, Topic, Topology

Present = Callable[[str, Row[Any]], BaseModel | None]
"""(key, row) → the row as the API shows it; None when it shows nothing."""


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

    def members(self) -> frozenset[str]:
        """URLs of all workers of the service, this one included, as the group last named them."""

    def serves(self, table: Table, partition: int) -> bool:
        """Whether rows of the partition read here now are the latest: owned, restored and in the group's lease."""

    def read(self, table: Table, partition: int, key: bytes) -> Row[Any] | None:
        """The committed row of `key`; the partition must be served here."""

    def position(self, table: Table, partition: int) -> int:
        """Offset of the last record of the table's source that rows read here include; -1 while there is none."""

    async def progress(self) -> None:
        """Returns after the next commit here, or when partitions move."""

    def watch(self, table: Table, key: bytes) -> AbstractContextManager[asyncio.Event]:
        """An event that is set after each commit that changed the row of `key` here, and when partitions move."""

    def standby_lag(self, table: Table, partition: int) -> int | None:
        """Records by which the copy held here is known to be behind; None when none is held, or it is not followed.

        None for an owner's, too: it is served, or others may have written since, and how much is not known here.
        """

    def scan(self, table: Table, partition: int, after: bytes = b"") -> Iterator[tuple[bytes, Row[Any]]]:
        """Committed rows of a partition held here, in key order, beginning behind `after`."""

    def keys_by(
        self, table: Table, partition: int, field: str, start: bytes = b"", descending: bool = False
    ) -> Iterator[bytes]:
        """Index entries (shared.indexing) of a partition held here, in order, beginning behind `start`."""

    def changes(self, table: Table, after: Mapping[int, int | None]) -> AbstractAsyncContextManager[Feed]:
        """The table's committed changes behind changelog offsets, by partition; None begins at the present end.

        Any worker can tell them. Raises NotReady while it can't, and LookupError for an offset that never was.
        """

    async def records(self, topic: Topic, partition: int, offsets: Sequence[int]) -> Sequence[bytes]:
        """Values of committed records, by ascending offsets; any worker can read them.

        Raises NotReady while it can't, and LogBegins when some were removed since.
        """

    def expect(self, aggregate_id: str, command_id: str) -> asyncio.Future[Committed]:
        """Completes once that command is decided and committed here; ask before sending it."""

    async def append(self, topic: Topic, key: bytes, value: bytes, partition: int | None = None) -> int:
        """Append a record, by default where its key belongs.

        Returns its offset after the broker's acknowledgement. Raises NotReady.
        """

    def ready(self) -> bool:
        """Whether every partition assigned here is served."""

    def status(self) -> Status:
        """Who owns what and how far each partition held here is."""
