"""What there is to fold: every service's tables, with the pure part that computes each."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from shared.es.decider import Decider
from shared.es.errors import OnefoldError
from shared.es.row import RowCodec
from shared.read_model import ReadModel
from shared.topology import Table, Topic, Topology

Pure = Decider[Any, Any, Any] | ReadModel[Any, Any]


class UnknownTable(OnefoldError):
    """No service declares the table, or nothing says how it is computed.

    Operator action: name a table that `topology.py` of a service declares, and give it a Decider in
    `domain/decide.py` or a ReadModel in `projections.py`.
    """


@dataclass(frozen=True, slots=True)
class FoldedTable:
    """A table, and the topic whose records are folded into it.

    service: the folder of services/ that declares it. pure: what folds, a decider's `evolve` or a `project`.
    """

    service: str
    topology: Topology
    table: Table
    events: Topic
    pure: Pure

    @property
    def changelog(self) -> str:
        return self.topology.changelog(self.table).name

    @property
    def initial(self) -> Any:
        """The state of a key before its first event."""
        return self.pure.initial

    @property
    def row_codec(self) -> RowCodec[Any]:
        return self.pure.row_codec


def services() -> list[str]:
    """The folders of `services` that have a topology."""
    package = importlib.import_module("services")
    folders = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg)
    return [folder for folder in folders if find_spec(f"services.{folder}.topology")]


@cache
def tables(service: str) -> tuple[FoldedTable, ...]:
    """The tables of `service`, as declared. Raises UnknownTable."""
    if service not in services():
        raise UnknownTable(f"no service is called {service}; there are {', '.join(services())}")
    topology: Topology = importlib.import_module(f"services.{service}.topology").TOPOLOGY
    models = {model.table.name: model for model in _read_models(service)}
    return tuple(_folded(service, topology, table, models.get(table.name)) for table in topology.tables)


def table_of(service: str, name: str) -> FoldedTable:
    """The table `name` of `service`. Raises UnknownTable."""
    found = {each.table.name: each for each in tables(service)}
    if name not in found:
        raise UnknownTable(f"{service} has no table {name}; it has {', '.join(found) or 'none'}")
    return found[name]


def _folded(service: str, topology: Topology, table: Table, model: ReadModel[Any, Any] | None) -> FoldedTable:
    if model is not None:
        return FoldedTable(service, topology, table, table.source, model)
    if not find_spec(f"services.{service}.domain.decide"):
        raise UnknownTable(f"{service} has neither a decider nor a read model of its table {table.name}")
    decider: Decider[Any, Any, Any] = importlib.import_module(f"services.{service}.domain.decide").DECIDER
    return FoldedTable(service, topology, table, _own_events(topology), decider)


def _read_models(service: str) -> Iterable[ReadModel[Any, Any]]:
    name = f"services.{service}.projections"
    return importlib.import_module(name).READ_MODELS if find_spec(name) else ()


def _own_events(topology: Topology) -> Topic:
    found = [topic for topic in topology.topics if topic.name.startswith(f"{topology.service}.events.")]
    if len(found) != 1:
        raise UnknownTable(f"{topology.service} declares {len(found)} topics of events, not one")
    return found[0]
