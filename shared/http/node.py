"""What the HTTP side needs from the worker it runs in; `shared.group.node.WorkerNode` implements it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, get_origin, get_type_hints

from pydantic import BaseModel

from shared.domain.decider import Decider
from shared.domain.personal import check_alike, models_in, personal_fields
from shared.domain.row import Row
from shared.privacy.persons import check_person_keys
from shared.privacy.sealing import Sealer, sealer
from shared.runtime.positions import Committed, Place
from shared.runtime.routes import Routes
from shared.runtime.settings import Settings
from shared.runtime.status import Status
from shared.runtime.tracing import Tracing
from shared.tables.feed import Feed
from shared.topology.topics import Table, Topic, Topology

Present = Callable[[str, Row[Any]], BaseModel | None]
"""(key, row) → the row as the API shows it; None to show nothing."""


def view_sealer(node: Node, present: Present) -> Sealer:
    """Decrypts what `present` gives.

    If it is annotated: raises SettingsError without the database that this needs, and ValueError for a view with a part
    that would stay encrypted, such as a field that is Personal only in the row.
    """
    try:
        hints = get_type_hints(present)
    except (NameError, TypeError):  # such as of a partial
        hints = {}
    returned = hints.get("return")
    check_alike([returned, *(hint for hint in hints.values() if get_origin(hint) is Row)])
    if any(map(personal_fields, models_in(returned))):
        check_person_keys(node.settings)
    return sealer(node.settings)


def as_json(view: BaseModel) -> bytes:
    """What is sent of a view everywhere: its fields by the names that its schema promises, and null for NaN."""
    return view.model_dump_json(by_alias=True).encode()


def of_all(node: Node, table: Table) -> range:
    """The partitions that have all rows between them: of a reference table, the first."""
    return range(1 if table.everywhere else node.topology.partitions)


class Node(Protocol):
    """One worker of a service, as its HTTP side sees it: who owns what, and the rows that are here."""

    @property
    def topology(self) -> Topology: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def tracing(self) -> Tracing | None:
        """None where nothing is traced."""

    @property
    def routes(self) -> Routes | None:
        """Which version answers; None where the service has only one."""

    @property
    def decider(self) -> Decider[Any, Any, Any] | None:
        """Of the service's aggregate; None where it has none."""

    def partition(self, key: bytes) -> int:
        """The partition of `key`, the same in every topic and table of the service."""

    def owner(self, table: Table, partition: int) -> str | None:
        """URL of the worker that owns the partition; None while no worker does."""

    def members(self) -> frozenset[str]:
        """URLs of all workers of the service, this one included, as the group last named them."""

    def serves(self, table: Table, partition: int) -> bool:
        """Whether rows read here now are the latest: the partition is owned, restored and within the group's lease."""

    def state_type(self, table: Table) -> Any:
        """The type of the states in the table's rows, for pydantic to read; Any if it is not known."""

    def read(self, table: Table, partition: int, key: bytes) -> Row[Any] | None:
        """The committed row of `key`; the partition must be served here."""

    def position(self, table: Table, partition: int) -> int:
        """Offset of the last source record that rows read here include; -1 while there is none."""

    def event_offsets(self, partition: int) -> Mapping[Place, int]:
        """The last offset of the service's own events in `partition`: rows read here include no later ones."""

    async def progress(self) -> None:
        """Returns when a source has advanced here, or when partitions move."""

    def watch(self, table: Table, key: bytes) -> AbstractContextManager[asyncio.Event]:
        """An event that is set after each commit that changed the row of `key` here, and when partitions move."""

    async def standby_lag(self, table: Table, partition: int) -> int | None:
        """How many records the replica held here is known to be behind; None without one, or if nobody knows in time.

        None for an owner's, too: it is served, or others may have written since, and how much is not known here.
        """

    def keys(self, table: Table, partition: int, after: bytes = b"") -> Iterator[bytes]:
        """The keys of committed rows of a partition held here, in order, starting after `after`."""

    def keys_by(
        self, table: Table, partition: int, index: str, start: bytes = b"", descending: bool = False
    ) -> Iterator[bytes]:
        """Entries of an index (shared.tables.indexing) of a partition held here, in order, starting after `start`."""

    def has_entry(self, table: Table, partition: int, entry: bytes) -> bool:
        """Whether an index of a partition held here has this entry."""

    def changes(
        self, table: Table, after: Mapping[int, int | None], key: bytes | None = None
    ) -> AbstractAsyncContextManager[Feed]:
        """The table's committed changes after a changelog offset per partition; all None to start at the current end.

        key: only those of this row.
        Any worker can serve them. Raises NotReady while it can't, and LookupError for an offset that never existed.
        """

    async def records(self, topic: Topic, partition: int, offsets: Sequence[int]) -> Sequence[bytes]:
        """Values of committed records at ascending offsets; any worker can read them.

        Raises NotReady while it can't, and LogBegins when some have been removed.
        """

    def expect(self, aggregate_id: str, command_id: str, partition: int) -> asyncio.Future[Committed]:
        """Completes once that command is decided and committed here; call it before sending the command.

        Raises TimeoutError once it is known that it will not be, as the partition has moved or this worker stops.
        """

    def append(
        self, topic: Topic, key: bytes, value: bytes, partition: int | None = None
    ) -> Awaitable[tuple[int, int]]:
        """Append a record, by default to its key's partition: it is on its way before anyone waits.

        Gives its partition and offset after the broker's acknowledgement. Raises NotReady, at once or then.
        """

    def ready(self) -> bool:
        """Whether every partition assigned here is served."""

    def status(self) -> Status:
        """Who owns what, and how far behind each partition held here is."""


def positions_of(node: Node, table: Table, partition: int) -> dict[Place, int]:
    """The last offset that rows read here include, of each topic that the table tells of; -1 while there is none."""
    return {Place(each.source.name, partition): node.position(each, partition) for each in table.folded}
