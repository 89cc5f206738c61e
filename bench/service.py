"""The bench's fold as a service would declare it, for Spark's workers to find."""

from __future__ import annotations

from bench.domain import Sales, Sold, project
from bench.topology import TOPOLOGY
from shared.topology import Projection, Service

SERVICE = Service(
    TOPOLOGY,
    projections=[Projection(TOPOLOGY.tables[0], project, initial=Sales(), events=(Sold,), state=Sales)],
)
