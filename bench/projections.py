"""The bench's fold as a service would declare it, for Spark's workers to find by its name."""

from __future__ import annotations

from typing import Any

from bench.domain import Sales, Sold, project
from bench.topology import TOPOLOGY
from shared.topology.projection import ReadModel

READ_MODELS: tuple[ReadModel[Any, Any], ...] = (
    ReadModel(TOPOLOGY.tables[0], project, initial=Sales(), events=(Sold,), state=Sales),
)
