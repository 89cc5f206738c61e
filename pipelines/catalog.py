"""What there is to fold: every service's tables, with the pure part that computes each."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from shared.es.decider import Decider
from shared.es.errors import OnefoldError
from shared.topology import Table, Topic, Topology


class UnknownTable(OnefoldError):
    """No service declares it, or its declaration does not say how it is computed."""


@dataclass(frozen=True, slots=True)
class AggregateTable:
    """A table of aggregates: the fold of `events`, key by key. service: the folder of services/ that has the fold."""

    service: str
    topology: Topology
    table: Table
    events: Topic
    decider: Decider[Any, Any, Any]

    @property
    def changelog(self) -> str:
        return self.topology.changelog(self.table).name


def services() -> list[str]:
    """The folders of `services` that have a topology."""
    package = importlib.import_module("services")
    folders = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg)
    return [folder for folder in folders if find_spec(f"services.{folder}.topology")]


@cache
def tables(service: str) -> tuple[AggregateTable, ...]:
    """The tables of `service`, as declared. Raises UnknownTable."""
    if service not in services():
        raise UnknownTable(f"no service is called {service}; there are {', '.join(services())}")
    topology: Topology = importlib.import_module(f"services.{service}.topology").TOPOLOGY
    return tuple(_described(service, topology, table) for table in topology.tables)


def table_of(service: str, name: str) -> AggregateTable:
    """The table `name` of `service`. Raises UnknownTable."""
    found = {each.table.name: each for each in tables(service)}
    if name not in found:
        raise UnknownTable(f"{service} has no table {name}; it has {', '.join(found) or 'none'}")
    return found[name]


def _described(service: str, topology: Topology, table: Table) -> AggregateTable:
    decider: Decider[Any, Any, Any] = importlib.import_module(f"services.{service}.domain.decide").DECIDER
    return AggregateTable(service, topology, table, events_of(topology), decider)


def events_of(topology: Topology) -> Topic:
    """The topic of the service's own facts. Raises UnknownTable."""
    found = [topic for topic in topology.topics if topic.name.startswith(f"{topology.service}.events.")]
    if len(found) != 1:
        raise UnknownTable(f"{topology.service} declares {len(found)} topics of events, not one")
    return found[0]
