"""What can be folded: every service's tables, with the pure part that computes each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from shared.domain.decider import Decider
from shared.domain.errors import OnefoldError
from shared.domain.row import Row, RowCodec
from shared.runtime.checkout import found_services
from shared.runtime.declared import declared
from shared.topology.declaration import Service
from shared.topology.join import Join
from shared.topology.policy import Policy
from shared.topology.projection import Projection
from shared.topology.publication import Publication
from shared.topology.topics import Table, Topic, Topology

Pure = Decider[Any, Any, Any] | Projection[Any, Any]


class UnknownTable(OnefoldError):
    """No service declares the table, or nothing says how it is computed.

    Operator action: name a table that `topology.py` of a service declares, and give SERVICE in its `service.py` the
    decider or the projection that fills it.
    """


class Version(NamedTuple):
    """A key after some event. state: as JSON. has_ended: so it needs no row; an aggregate may have one yet."""

    sequence: int
    state: bytes
    has_ended: bool


@dataclass(frozen=True, slots=True)
class FoldedTable:
    """A table, and the topic whose records are folded into it.

    package: that of the service that declares it. pure: its fold, a decider's `evolve` or a `project`.
    """

    package: str
    topology: Topology
    table: Table
    events: Topic
    pure: Pure

    @property
    def changelog(self) -> str:
        return self.topology.changelog(self.table).name

    @property
    def origin(self) -> str:
        """Where its rows come from."""
        return self.events.name

    @property
    def is_view(self) -> bool:
        """Whether the table is folded from its own source; an aggregate's source is its commands."""
        return isinstance(self.pure, Projection)

    @property
    def initial(self) -> Any:
        """The state of a key before its first event."""
        return self.pure.initial

    def has_ended(self, state: bytes) -> bool:
        """Whether a key in that state, as JSON, has no row."""
        return self.table.ends and self.row_codec.is_read_like(state, self.initial)

    def versions(self, first: int, states: Iterable[bytes]) -> list[Version]:
        """Of a key at sequence `first` in the first of these states, and in the others after one event more each."""
        found = list[Version]()
        for state in states:
            has_ended = self.has_ended(state)
            counts_anew = has_ended and self.is_view
            sequence = first if not found else 0 if counts_anew else found[-1].sequence + 1
            found.append(Version(sequence, state, has_ended))
        return found

    @property
    def row_codec(self) -> RowCodec[Any]:
        return self.pure.row_codec


@dataclass(frozen=True, slots=True)
class JoinedTable:
    """A table, and the folded ones that its rows are joined of. references: by each field that refers to one."""

    package: str
    topology: Topology
    join: Join[Any]
    parts: tuple[FoldedTable, ...]
    references: tuple[FoldedTable, ...] = ()

    @property
    def table(self) -> Table:
        return self.join.table

    @property
    def changelog(self) -> str:
        return self.topology.changelog(self.table).name

    @property
    def every(self) -> tuple[FoldedTable, ...]:
        """The parts, then the references."""
        return self.parts + self.references

    @property
    def origin(self) -> str:
        return ", ".join(each.table.name for each in dict.fromkeys(self.every))

    @property
    def row_codec(self) -> RowCodec[Any]:
        return self.join.row_codec

    def row(self, key: bytes, rows: Sequence[bytes | None]) -> Row[Any] | None:
        """The joined row of `key`; None if no part has one. rows: those of `every`, encoded, None where none is."""
        made_of = [
            each.pure.initial_row if row is None else each.row_codec.decode(row)
            for each, row in zip(self.every, rows, strict=True)
        ]
        return self.join.row(made_of, key.decode())

    def keys_of(self, first: bytes | None) -> Sequence[bytes | None]:
        """The keys of the rows that one of the first part refers to. first: encoded, None where none is."""
        view = self.parts[0].initial if first is None else self.parts[0].row_codec.decode(first).state
        return self.join.keys_of(view)


AnyTable = FoldedTable | JoinedTable


def services() -> list[str]:
    """The folders of `services` that have a topology."""
    return found_services(having="service.py")


def tables(service: str) -> tuple[FoldedTable, ...]:
    """The tables of `service` that are folded, as declared. Raises UnknownTable."""
    return tables_in(_package(service))


def joins(service: str) -> tuple[JoinedTable, ...]:
    """The tables of `service` that are joined of others. Raises UnknownTable."""
    return joins_in(_package(service))


def _package(service: str) -> str:
    if service not in services():
        raise UnknownTable(f"no service is called {service}; there are {', '.join(services())}")
    return f"services.{service}"


@cache
def tables_in(package: str) -> tuple[FoldedTable, ...]:
    """The folded tables that `package`, a folder like those of services/, declares. Raises UnknownTable, Undeclared."""
    service = service_in(package)
    return tuple(_folded(package, service, table) for table in service.topology.tables if not table.joins)


def joins_in(package: str) -> tuple[JoinedTable, ...]:
    """The same of the joined ones."""
    service, folded = service_in(package), {each.table: each for each in tables_in(package)}
    return tuple(
        JoinedTable(
            package,
            service.topology,
            join,
            tuple(folded[each] for each in join.table.joins),
            tuple(folded[each] for _, each in join.table.refers),
        )
        for join in service.joins
    )


def table_of(service: str, name: str) -> FoldedTable:
    """The folded table `name` of `service`. Raises UnknownTable."""
    found = {each.table.name: each for each in tables(service)}
    if name not in found:
        raise UnknownTable(f"{service} has no table {name}; it has {', '.join(found) or 'none'}")
    return found[name]


def table_in(package: str, name: str) -> FoldedTable:
    """The table `name` of `package`, for Python workers, which are given names only."""
    return next(table for table in tables_in(package) if table.table.name == name)


def join_in(package: str, name: str) -> JoinedTable:
    """The same of a joined one."""
    return next(table for table in joins_in(package) if table.table.name == name)


def policies_in(package: str) -> tuple[Policy, ...]:
    """The policies that `package` declares."""
    return tuple(service_in(package).policies)


def answering_in(package: str) -> tuple[Policy | Publication, ...]:
    """All of it that answers an event with what must not be written twice."""
    service = service_in(package)
    return *service.policies, *service.publications


def service_in(package: str) -> Service:
    """What `package` declares. Raises Undeclared."""
    service: Service = declared(package, "service", "SERVICE")
    return service


def _folded(package: str, service: Service, table: Table) -> FoldedTable:
    for projection in service.projections:
        if projection.table.name == table.name:
            return FoldedTable(package, service.topology, table, table.source, projection)
    if not table.is_of_commands:
        raise _unfolded(package, table, "projection")
    if service.decider is None:
        raise _unfolded(package, table, "decider")
    return FoldedTable(package, service.topology, table, service.events, service.decider)


def _unfolded(package: str, table: Table, what: str) -> UnknownTable:
    return UnknownTable(f"{package} has no {what} of its table {table.name}; fix: give it to SERVICE in service.py")
