"""What a service declares of a database table: its columns, what it is made of, and the pure function in between."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, Protocol

from sqlalchemy import Column, MetaData
from sqlalchemy import Table as DatabaseTable

from shared.domain.envelope import EventCodec, EventEnvelope
from shared.domain.errors import OnefoldError, UnknownType
from shared.domain.message import Event
from shared.domain.row import Row, RowCodec
from shared.domain.upcasting import Upcasters
from shared.topology.topics import Table, Topic, Topology

Values = tuple[Any, ...]
"""Of the columns of a database row, in their order."""

Changed = dict[Values, Values | None]
"""What a batch leaves: each row that it changed once, by its primary key; None for one that it deleted."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class BadRow(OnefoldError):
    """A record can't become database rows, so the sink stands before it.

    Operator action: correct `rows` or the columns of the sink, then start it again; it goes on with that record.
    """


class Upsert(NamedTuple):
    """Writes a database row, in the place of one with the same primary key. values: of all columns, by their names."""

    values: Mapping[str, Any]


class Delete(NamedTuple):
    """Deletes a database row, if there is one. key: the values of its primary key, by the names of its columns."""

    key: Mapping[str, Any]


Change = Upsert | Delete
"""What `rows` of a Sink gives."""


class Source(Protocol):
    """What a sink reads. PART: the field of what is decoded that may hold personal text. DELETES: whether records that
    tell of deleted rows vanish a day later.
    """

    PART: ClassVar[str]
    DELETES: ClassVar[bool]

    def topic_in(self, topology: Topology) -> str: ...
    def decode(self, value: bytes | None) -> Any:
        """Raises ValueError or BadMessage."""

    def passes(self, decoded: Any) -> bool:
        """Whether it is handed to `rows`."""


@dataclass(frozen=True)
class RowsOf:
    """The rows of one of the service's own tables, as its changelog has them. `rows` of the Sink gets a Row, in the
    order of its key's changes, and None for a row that is no more. Of several changes it may get only the last.

    table  the table.
    state  the type of its states, as the decider or the projection declares it.

    Raises pydantic's errors for a type that it cannot read.
    """

    PART: ClassVar[str] = "state"
    DELETES: ClassVar[bool] = True

    table: Table
    state: Any

    def __post_init__(self) -> None:
        self._decode  # noqa: B018 - a type that can't be read is refused here

    @cached_property
    def _decode(self) -> Callable[[bytes], Row[Any]]:
        return RowCodec(self.state).decode

    def topic_in(self, topology: Topology) -> str:
        return topology.changelog(self.table).name

    def decode(self, value: bytes | None) -> Row[Any] | None:
        return self._decode(value) if value is not None else None

    def passes(self, decoded: Row[Any] | None) -> bool:
        return True


@dataclass(frozen=True)
class EventsOf:
    """The events of a topic. `rows` of the Sink gets an EventEnvelope, in the order of its key's events, and each takes
    effect once. A row that sums events up belongs into a table: `rows` can't read what it wrote before.

    topic      the service's own, or a neighbour's that its Service declares in `reads`.
    events     the classes of events that it reads; others are skipped.
    upcasters  how older versions of these events are read.

    Raises ValueError for events that `check_types` refuses.
    """

    PART: ClassVar[str] = "data"
    DELETES: ClassVar[bool] = False

    topic: Topic
    events: tuple[type[Event], ...]
    upcasters: Upcasters = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._decode  # noqa: B018 - as above

    @cached_property
    def _decode(self) -> Callable[[bytes | None], EventEnvelope[Any]]:
        return EventCodec(self.events, self.upcasters).decode

    def topic_in(self, topology: Topology) -> str:
        return self.topic.name

    def decode(self, value: bytes | None) -> EventEnvelope[Any] | None:
        try:
            return self._decode(value)
        except UnknownType:
            return None

    def passes(self, decoded: EventEnvelope[Any] | None) -> bool:
        return decoded is not None


@dataclass(frozen=True, eq=False)
class Sink:
    """Fills the database table `<name>_v<version>`, which readers see as the view `<name>`.

    name     at most 40 lower-case letters, digits and underscores, the first a letter.
    columns  SQLAlchemy's, of this sink alone; at least one has `primary_key=True`.
    source   a RowsOf or an EventsOf: what it is made of.
    rows     (key of the record, what `source` gives) -> changes, of which the last of each database row counts. It is
             pure: after a restart or a restore of the database it is called with the same records again, and must give
             the same. An exception stops the sink before that record.
    version  counts from 1, and is raised when `rows` or the columns change; the new table is filled from the start,
             beside the old one.
    opens    whether `rows` gets personal text in the clear. It stays in the database when its person is forgotten.

    Raises ValueError for a name that is not legal, or columns without a primary key.
    """

    name: str
    columns: tuple[Column[Any], ...]
    source: Source
    rows: Callable[[str, Any], Iterable[Change]]
    version: int = 1
    opens: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            legal = "use at most 40 lower-case letters, digits and underscores, the first a letter"
            raise ValueError(f"no name of a sink: {self.name!r}; fix: {legal}")
        if not self.table.primary_key.columns:
            raise ValueError(f"{self.table.name} has no primary key; fix: Column(…, primary_key=True)")

    @cached_property
    def table(self) -> DatabaseTable:
        return DatabaseTable(f"{self.name}_v{self.version}", MetaData(), *self.columns)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of all columns."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """Of the primary key's columns."""
        return tuple(column.name for column in self.table.primary_key.columns)

    def change(self, changed: Changed, key: str, decoded: Any) -> None:
        """Adds to `changed` what the record leads to: all or nothing, then it raises what `rows` raises, KeyError for a
        missing column, or TypeError for an unknown one.
        """
        changed.update([self._item(change) for change in self.rows(key, decoded)])

    def _item(self, change: Change) -> tuple[Values, Values | None]:
        if isinstance(change, Upsert):
            return self._get_key(change.values), self._values(change.values)
        return self._get_key(change.key), None

    def _values(self, values: Mapping[str, Any]) -> Values:
        if len(values) != len(self.names):
            raise TypeError(f"rows gives {sorted(values)}, and the columns are {sorted(self.names)}")
        return self._get_values(values)

    @cached_property
    def _get_values(self) -> Callable[[Mapping[str, Any]], Values]:
        return _getter(self.names)

    @cached_property
    def _get_key(self) -> Callable[[Mapping[str, Any]], Values]:
        return _getter(self.key_names)


def _getter(names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Values]:
    """The values of these names. It raises KeyError for one that is missing."""
    if len(names) == 1:
        return lambda values: (values[names[0]],)
    return itemgetter(*names)
