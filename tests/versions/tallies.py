"""Services of one view, in two versions: the second leaves out visits of no minutes, which the first counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from shared.domain import Event, EventEnvelope, Row, State
from shared.service import Resource
from shared.topology import Projection, Service, Table, Topic, Topology

PARTITIONS = 4


class Visited(Event):
    TYPE = "visit.made"

    minutes: int


class Total(State):
    visits: int = 0


class TotalView(BaseModel):
    visits: int


@dataclass(frozen=True)
class Counting:
    version: int

    def __call__(self, total: Total, event: EventEnvelope[Visited], _: str) -> Total:
        return Total(visits=total.visits + (self.version == 1 or event.data.minutes > 0))


def total_view(_: str, row: Row[Total]) -> TotalView:
    return TotalView(visits=row.state.visits)


def visits_to(name: str) -> Topology:
    """What the service of that name counts."""
    service = f"visits-to-{name}"
    return Topology(service, (Topic(f"{service}.events.v1"),), partitions=PARTITIONS)


def tallies(version: int, name: str = "tallies") -> Service:
    table = Table("totals", source=visits_to(name).topics[0])
    view: Projection[Any, Any] = Projection(table, Counting(version), Total(), (Visited,), Total)
    topology = Topology(name, topics=(), tables=(table,), partitions=PARTITIONS, version=version)
    return Service(topology, projections=(view,))


def routes_of(service: Service) -> Resource[Total]:
    return Resource("/totals/{visitor}", service.topology.tables[0], total_view)
