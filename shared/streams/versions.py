"""Whether this version of a service may take over: what it has done, or the next one, is not done a second time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import structlog

from shared.kafka.offsets import Offsets
from shared.positions import Partition
from shared.streams.processors import Processor
from shared.topology import Topology

log = structlog.get_logger(__name__)

Ask = Callable[..., Awaitable[Any]]
"""Asks a blocking question, given with its arguments, until the brokers answer."""


class NotRebuilt(Exception):
    """The tables of this version were not filled from history yet: to go on without them would repeat history.

    Operator action: run `rebuild` for this service, then start the worker again.
    """


class Superseded(Exception):
    """The next version went on from where this one stands, so this one would decide, send and copy all since again.

    Operator action: do what the message says after `fix:`.
    """


class PositionsForgotten(Exception):
    """The brokers know no position of a group that has written: what it sent and copied, it would send and copy again.

    They forget positions `offsets.retention.minutes` after the last worker has left.
    Operator action: do what the message says after `fix:`, then start the worker again.
    """


class VersionGuard:
    """Asked at each take-over, before a record is read.

    leaves_no_row: something is sent or copied, and no row remembers it.
    """

    def __init__(self, topology: Topology, sources: Mapping[str, Sequence[Processor]], offsets: Offsets, ask: Ask):
        """sources: by topic, who reads it."""
        self._topology = topology
        self._sources = frozenset(sources)
        self._processors = [each for readers in sources.values() for each in readers]
        self.leaves_no_row = any(each.table is None for each in self._processors)
        self._offsets = offsets
        self._ask = ask

    async def refuse_to_follow(self) -> None:
        """Raises Superseded. Views alone may go on: they tell nobody what they did."""
        if not any(each.writes for each in self._processors):
            return
        topology, after = self._topology, self._topology.next_version
        if await self._has_begun(after.group):
            raise Superseded(
                f"{after.group} went on from here, and {topology.group} would do all since again; fix: start "
                f"{after.group}, or give this code `version` {after.version + 1} and `rebuild {topology.service}`"
            )

    async def refuse_to_repeat(self) -> None:
        """Without a position all is read from the start: rightly, where nothing was before.

        Also where only rows come of it, which skip what they hold. Raises NotRebuilt or PositionsForgotten.
        """
        topology = self._topology
        if topology.version > 1:
            # commands without an event are not repeated: nothing came of them
            fed = [each for each in self._processors if each.table in topology.tables]
            facts = {topic.name for each in fed for topic in ([each.source] if each.repeatable else each.writes)}
            if filled := await self._filled_without_position(facts):
                raise NotRebuilt(f"{topology.group} has no position, and {filled} has records")
        if self.leaves_no_row:
            changelogs = {topology.changelog(table).name for table in topology.all_tables()}
            if filled := await self._filled_without_position(changelogs):
                raise PositionsForgotten(
                    f"{topology.group} has no position any more, and {filled} has records: the brokers have forgotten "
                    f"where it was, as they do after offsets.retention.minutes; fix: {self._way_on()}"
                )

    def warn_of_late_views(self, read: Set[Partition], ends: Mapping[Partition, int]) -> None:
        """A position is of a topic, not of a view: one that is new reads its source from where the others are.

        read: partitions of sources that lie behind us in part. ends: of the changelogs, too.
        """
        for view in (each for each in self._processors if each.repeatable):
            numbers = {partition for topic, partition in read if topic == view.source.name}
            if view.table is None or not numbers:
                continue
            changelog = self._topology.changelog(view.table).name
            if not any(ends[changelog, number] for number in numbers):
                log.warning(
                    "a view has no row, though its source was read: if it is new, it begins in the middle",
                    view=f"{self._topology.service}/{view.name}",
                    source=view.source.name,
                    fix="docs/operations.md, Restart and scale",
                )

    async def _filled_without_position(self, topics: Iterable[str]) -> str | None:
        """One of `topics` that has records, while the group has no position; in any partition, for ours may be idle."""
        ends = await self._ask(self._offsets.ends, self._everywhere(topics))
        filled: list[str] = sorted({topic for (topic, _), end in ends.items() if end})
        # the ends first: who wrote there meanwhile has committed a position before
        if filled and not await self._has_begun(self._topology.group):
            return filled[0]
        return None

    async def _has_begun(self, group: str) -> bool:
        """Whether the brokers know a position of it."""
        committed = await self._ask(self._offsets.committed, group, self._everywhere(self._sources))
        return set(committed.values()) != {None}

    def _everywhere(self, topics: Iterable[str]) -> list[Partition]:
        return [(topic, partition) for topic in topics for partition in range(self._topology.partitions)]

    def _way_on(self) -> str:
        """How a group that sends or copies gets positions again."""
        service, group = self._topology.service, self._topology.group
        if all(each.repeatable for each in self._processors):
            return f"`reprocess {service}`"
        if self._topology.tables and not any(each.copies for each in self._processors):
            return f"raise `version` in its topology.py, then `rebuild {service} --mirrored`"
        return (
            f"`kafka-consumer-groups --reset-offsets --to-datetime …` for group {group}, "
            f"to a little before its last worker stopped"
        )
