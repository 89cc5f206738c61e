"""What the sides own on the broker."""

from __future__ import annotations

from shared.topology.topics import Table, Topic, Topology

PARTITIONS = 8


def engine_topology(service: str, source: Topic, partitions: int = PARTITIONS) -> Topology:
    """Topics and a table of its own for each run, beside the source that all runs read."""
    topics = (source, Topic(f"{service}.events.v1"))
    return Topology(service, topics, (Table("sales", source),), partitions)


TOPOLOGY = engine_topology("bench", Topic("bench.sold.v1"))
"""What the projection is declared on; a run folds its own source."""
