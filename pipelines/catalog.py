"""What can be folded: every service's tables, with the pure part that computes each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from shared.domain.decider import Decider
from shared.domain.errors import OnefoldError
from shared.domain.row import RowCodec
from shared.runtime.checkout import declared, found_services
from shared.topology.policy import Reaction
from shared.topology.projection import ReadModel
from shared.topology.topics import Table, Topic, Topology

Pure = Decider[Any, Any, Any] | ReadModel[Any, Any]


class UnknownTable(OnefoldError):
    """No service declares the table, or nothing says how it is computed.

    Operator action: name a table that `topology.py` of a service declares, and give it a Decider, named DECIDER in
    `domain/decide.py`, or a ReadModel, in READ_MODELS of `projections.py`.
    """


@dataclass(frozen=True, slots=True)
class FoldedTable:
    """A table, and the topic whose records are folded into it.

    package: the one that declares it, such as services.accounts. pure: its fold, a decider's `evolve` or a `project`.
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
    def is_view(self) -> bool:
        """Whether the table is folded from its own source; an aggregate's source is its commands."""
        return isinstance(self.pure, ReadModel)

    @property
    def initial(self) -> Any:
        """The state of a key before its first event."""
        return self.pure.initial

    @property
    def row_codec(self) -> RowCodec[Any]:
        return self.pure.row_codec


def services() -> list[str]:
    """The folders of `services` that have a topology."""
    return found_services(having="topology.py")


def tables(service: str) -> tuple[FoldedTable, ...]:
    """The tables of `service`, as declared. Raises UnknownTable."""
    if service not in services():
        raise UnknownTable(f"no service is called {service}; there are {', '.join(services())}")
    return tables_in(f"services.{service}")


@cache
def tables_in(package: str) -> tuple[FoldedTable, ...]:
    """The tables that `package` declares, in a folder like those of services/. Raises UnknownTable."""
    topology: Topology = declared(package, "topology", "TOPOLOGY")
    read_models: Iterable[ReadModel[Any, Any]] = _declared(package, "projections", "READ_MODELS") or ()
    models = {model.table.name: model for model in read_models}
    return tuple(_folded(package, topology, table, models.get(table.name)) for table in topology.tables)


def table_of(service: str, name: str) -> FoldedTable:
    """The table `name` of `service`. Raises UnknownTable."""
    found = {each.table.name: each for each in tables(service)}
    if name not in found:
        raise UnknownTable(f"{service} has no table {name}; it has {', '.join(found) or 'none'}")
    return found[name]


def table_in(package: str, name: str) -> FoldedTable:
    """The table `name` of `package`, for Python workers, which are given names only."""
    return next(table for table in tables_in(package) if table.table.name == name)


def reactions_in(package: str) -> tuple[Reaction, ...]:
    """The policies that `package` declares."""
    return tuple(_declared(package, "policies", "REACTIONS") or ())


def _folded(package: str, topology: Topology, table: Table, model: ReadModel[Any, Any] | None) -> FoldedTable:
    if model is not None:
        return FoldedTable(package, topology, table, table.source, model)
    if table.source.kind != "commands":
        fix = "add its ReadModel to READ_MODELS in projections.py"
        raise UnknownTable(f"{package} has no read model of its table {table.name}; fix: {fix}")
    decider: Decider[Any, Any, Any] | None = _declared(package, "domain.decide", "DECIDER")
    if decider is None:
        fix = "add its Decider as DECIDER to domain/decide.py"
        raise UnknownTable(f"{package} has no decider of its table {table.name}; fix: {fix}")
    return FoldedTable(package, topology, table, _own_events(topology), decider)


def _declared(package: str, module: str, name: str) -> Any:
    """None if there is no such module. Raises Undeclared if there is, without the name."""
    path = f"{package}.{module}"
    try:
        return declared(package, module, name)
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):  # the module is there, and imports one that is not
            raise
        return None


def _own_events(topology: Topology) -> Topic:
    found = [topic for topic in topology.topics if topic.name.startswith(f"{topology.service}.events.")]
    if len(found) != 1:
        raise UnknownTable(f"{topology.service} declares {len(found)} topics of events, not one")
    return found[0]
