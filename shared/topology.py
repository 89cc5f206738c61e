"""A service's topics and tables as data; a service states its own in `topology.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. retention_ms: -1 keeps records for ever."""

    name: str
    cleanup: Literal["delete", "compact"] = "delete"
    retention_ms: int = -1


@dataclass(frozen=True, slots=True)
class Table:
    """A keyed table fed by one source topic, which is what makes it replayable."""

    name: str
    source: Topic


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything a service owns on the broker; all its topics have `partitions` partitions."""

    service: str
    topics: tuple[Topic, ...]
    tables: tuple[Table, ...] = ()
    partitions: int = 8

    def changelog(self, table: Table) -> Topic:
        """The compacted topic that Faust restores `table` from."""
        return Topic(f"{self.service}-{table.name}-changelog", cleanup="compact")

    def all_topics(self) -> tuple[Topic, ...]:
        """The declared topics, then the changelogs of the tables."""
        return self.topics + tuple(self.changelog(table) for table in self.tables)
