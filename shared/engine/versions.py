"""Whether this version of a service may take over without repeating what it, or the next version, has done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import structlog

from shared.engine.processors import Processor
from shared.kafka.offsets import Offsets
from shared.runtime.positions import Place
from shared.runtime.routes import Role
from shared.topology.topics import Topology

log = structlog.get_logger(__name__)

Ask = Callable[..., Awaitable[Any]]
"""Calls a blocking look-up with its arguments until the brokers answer."""


class VersionRefused(Exception):
    """This version may not take over. The subclasses say why, and what to do."""


class NotRebuilt(VersionRefused):
    """The tables of this version were not filled from history yet: to start without them would repeat history.

    Operator action: do what the message says after `fix:`, then start the worker again.
    """


class Superseded(VersionRefused):
    """The next version has continued from this one's positions: this one would decide, send and copy everything since
    a second time.

    Operator action: do what the message says after `fix:`.
    """


class PositionsForgotten(VersionRefused):
    """The brokers have no position of a group that has written, so it would send and copy everything again.

    They delete positions `offsets.retention.minutes` after the last worker has left.
    Operator action: do what the message says after `fix:`, then start the worker again.
    """


class TableChanged(VersionRefused):
    """A table has another name or source than before: its aggregates would begin again, or records would be skipped.

    Operator action: do what the message says after `fix:`.
    """


class TopicMadeAgain(VersionRefused):
    """A source was deleted and made again since records of it were handled: rows, or a position, would skip records of
    the new one, up to the offsets that they have of the former one.

    Operator action: do what the message says after `fix:`.
    """


class MixedReleases(VersionRefused):
    """A worker of another release is in the group, and neither can handle all that the other can. Or a source was
    assigned without rows that its processors need, by a worker of a release that knows nothing of abilities.

    Operator action: do what the message says after `fix:`.
    """


def supersedes(after: Role, own: Role) -> bool:
    """Whether the next version has gone on from this one's positions, instead of standing beside it."""
    return own.acts and (after.number > own.number or (after.acts and after.number == own.number))


class VersionGuard:
    """Asked at each take-over, before a record is read."""

    def __init__(self, topology: Topology, sources: Mapping[str, Sequence[Processor]], offsets: Offsets, ask: Ask):
        """sources: the processors that read each topic."""
        self._topology = topology
        self._sources = frozenset(sources)
        self._processors = [each for readers in sources.values() for each in readers]
        self._writes = any(each.writes for each in self._processors)
        self._acts_without_a_row = any(each.table is None for each in self._processors)  # none remembers what was sent
        self._offsets = offsets
        self._ask = ask

    async def refuse_if_superseded(self, ask: Ask) -> None:
        """Raises Superseded if the next version acts where this one does, or OffsetsUnknown as `ask` does."""
        topology = self._topology
        if not self._writes or not await self._has_begun(topology.next_version.group, ask):
            return
        turns = self._all_partitions([topology.routes.name])
        after = await ask(self._offsets.committed, topology.next_version.group, turns)  # first: ours can only be later
        own = await ask(self._offsets.committed, topology.group, turns)
        if any(supersedes(Role.of(after[place]), Role.of(own[place])) for place in turns):
            self.refuse_successor()

    def refuse_successor(self) -> None:
        """The next version has begun: raises Superseded. A service of views alone may go on: it writes no topics."""
        topology, after = self._topology, self._topology.next_version
        if self._writes:
            raise Superseded(
                f"{after.group} has taken over from {topology.group}, which would repeat everything done since; fix: "
                f"start {after.group}, or raise `version` to {after.version + 1} in this code's topology.py and "
                f"`rebuild {topology.service}`"
            )

    async def refuse_if_it_would_repeat(self) -> None:
        """Raises NotRebuilt or PositionsForgotten where a start without positions would repeat something.

        Without positions everything is read from the start. That is right where nothing was written before, and where
        processors only write rows: a row skips the records it already includes.
        """
        topology = self._topology
        if topology.version > 1:
            # a command that led to no event may be decided again: it had no effect
            fed = [each for each in self._processors if each.table in topology.tables]
            written = {topic.name for each in fed for topic in ([each.source] if each.repeatable else each.writes)}
            if filled := await self._filled_without_position(written):
                raise NotRebuilt(
                    f"{topology.group} has no position, and {filled} has records; fix: `rebuild {topology.service}`, "
                    f"then start the worker again"
                )
            await self._refuse_to_act_anew()
        elif filled := await self._filled_without_position(await self._events_without_rows()):
            raise NotRebuilt(
                f"{topology.group} has neither positions nor rows, and {filled} has records: it would decide all "
                f"commands again; fix: raise `version` in its topology.py, then `rebuild {topology.service} --mirrored`"
            )
        if self._acts_without_a_row:
            changelogs = {topology.changelog(table).name for table in topology.all_tables()}
            if filled := await self._filled_without_position(changelogs):
                raise PositionsForgotten(
                    f"{topology.group} has no position any more, and {filled} has records: the brokers deleted its "
                    f"positions, as they do after offsets.retention.minutes; fix: {self._fix()}"
                )

    async def _events_without_rows(self) -> list[str]:
        """The topics of events of aggregates whose tables are empty, as on a cluster that another is mirrored to."""
        topology, topics = self._topology, []
        for each in self._processors:
            if each.table is not None and each.table in topology.tables and not each.repeatable:
                changelog = self._all_partitions([topology.changelog(each.table).name])
                if not await self._ask(self._offsets.any_records, changelog):
                    topics += [events.name for events in each.writes]
        return topics

    async def _refuse_to_act_anew(self) -> None:
        """Raises NotRebuilt where an earlier version has acted, whatever is in the tables."""
        topology = self._topology
        if not self._acts_without_a_row or await self._has_begun(topology.group):
            return
        for version in range(topology.version - 1, 0, -1):
            before = replace(topology, version=version).group
            if await self._has_begun(before):
                rebuilt = f"`rebuild {topology.service}`, then start the worker again"
                if version + 1 < topology.version:
                    rebuilt = f"lower `version` to {version + 1} in its topology.py, then {rebuilt}"
                raise NotRebuilt(
                    f"{topology.group} has no position, and {before} has: it would send or copy everything again; "
                    f"fix: {rebuilt if topology.tables else f'put `version` back to {version}: it has no tables'}"
                )

    async def refuse_changed_tables(
        self, committed: Mapping[Place, int | None], starts: Mapping[Place, int], ends: Mapping[Place, int]
    ) -> None:
        """Raises TableChanged.

        committed: positions in the sources. starts, ends: of changelogs, among others.
        """
        begun = {place.number for place, position in committed.items() if position is not None}
        for each in self._processors:
            if each.table is None:
                continue
            source, changelog = each.source.name, self._topology.changelog(each.table).name
            numbers = {place.number for place in committed if place.topic == source} & begun
            rows = [Place(changelog, number) for number in numbers]
            filled = {place.number for place in rows if starts[place] < ends[place]}
            if any(committed[Place(source, number)] is None for number in filled):
                raise TableChanged(self._other_source(each))
            empty = {number for number in numbers - filled if committed[Place(source, number)]}
            if empty and not each.repeatable:
                there = [Place(events.name, number) for events in each.writes for number in empty]
                if await self._ask(self._offsets.any_records, there):
                    raise TableChanged(self._other_name(each))

    def refuse_by_notes(
        self,
        partition: int,
        noted: Mapping[str, str],
        present: Mapping[str, str],
        unread: Set[str],
        filled: Callable[[Processor], bool],
    ) -> None:
        """Raises TopicMadeAgain or PositionsForgotten.

        noted, present: the ids of topics, when their records were handled and now. unread: those that the group has no
        position in. filled: whether the partition has offsets of a processor's source; else nothing is skipped.
        """
        for each in self._processors:
            source = each.source.name
            if source not in noted:
                continue
            is_former = noted[source] != present[source]
            if each.table is None and not is_former and source in unread:
                raise PositionsForgotten(
                    f"{self._topology.group} has no position in {source}/{partition} any more, and has handled records "
                    f"of it: {each.name} would send or copy everything again; fix: {self._fix()}"
                )
            if is_former and (source not in unread if each.table is None else filled(each)):
                raise TopicMadeAgain(self._of_former(each, partition))

    def warn_of_late_views(self, read: Set[Place], ends: Mapping[Place, int]) -> None:
        """Log each view that looks new although its source was partly read: it misses the records read before.

        The group has one position per source, which a new view shares with the source's other processors. A topic of
        copies is as late as the position in what is copied.
        read: partitions of sources that were partly read. ends: of sources and changelogs.
        """
        sources, filled = {place.topic for place in read}, {place.topic for place, end in ends.items() if end}
        for view in self._processors:
            if not view.repeatable or view.table is None:
                continue
            origins = {each.source.name for each in self._processors if view.source in each.copies} | {view.source.name}
            if not (late := origins & sources):
                continue
            for table in [each for each in view.tables if self._topology.changelog(each).name not in filled]:
                log.warning(
                    "a view has no rows, but its source was read before: if the view is new, it misses those records",
                    view=f"{self._topology.service}/{table.name}",
                    source=", ".join(sorted(late)),
                    fix="docs/operations.md, Restart and scale",
                )

    async def _filled_without_position(self, topics: Iterable[str]) -> str | None:
        """One of `topics` that has records while the group has no position; in any partition, as ours may be idle."""
        ends = await self._ask(self._offsets.ends, self._all_partitions(topics))
        filled: list[str] = sorted({place.topic for place, end in ends.items() if end})
        # ends before positions: a worker that has written there meanwhile has also committed a position
        if filled and not await self._has_begun(self._topology.group):
            for topic in filled:  # behind an end may be nothing but what was aborted
                if await self._ask(self._offsets.any_records, self._all_partitions([topic])):
                    return topic
        return None

    async def _has_begun(self, group: str, ask: Ask | None = None) -> bool:
        """Whether the brokers have any position of the group."""
        committed = await (ask or self._ask)(self._offsets.committed, group, self._all_partitions(self._sources))
        return set(committed.values()) != {None}

    def _all_partitions(self, topics: Iterable[str]) -> list[Place]:
        return [Place(topic, number) for topic in topics for number in range(self._topology.partitions)]

    def _other_source(self, processor: Processor) -> str:
        """A row holds the offset of the last record in it: it would skip another topic's records up to there."""
        source, name = processor.source.name, f"{self._topology.service}/{processor.name}"
        return (
            f"{name} has rows, but {self._topology.group} has no position in {source}: unless the brokers have "
            f"forgotten it, {source} was deleted and made again, or the rows come from another source, and would skip "
            f"records of this one; fix: give the table the source that it had, or {self._again(processor)}"
        )

    def _again(self, processor: Processor) -> str:
        """How to make the processor's rows from what its source has now."""
        service = self._topology.service
        beside = [each for each in self._processors if each.source == processor.source]
        if processor.table in self._topology.tables and all(each.repeatable and not each.copies for each in beside):
            return f"`reprocess {service}/{processor.name}`"
        return f"raise `version` in its topology.py, then `rebuild {service}`"

    def _of_former(self, processor: Processor, partition: int) -> str:
        source, name = processor.source.name, f"{self._topology.service}/{processor.name}"
        has, fix = f"rows of the former one in partition {partition}", self._again(processor)
        if processor.table is None:
            has = f"the position of the former one in partition {partition}"
            fix = f"`kafka-consumer-groups --delete-offsets --topic {source}` for group {self._topology.group}"
        return f"{source} was deleted and made again: {name} has {has}, and would skip records of this one; fix: {fix}"

    def _other_name(self, processor: Processor) -> str:
        service, name = self._topology.service, processor.name
        return (
            f"{service}/{name} has no rows, but its commands were read and have led to events: every aggregate would "
            f"begin again at sequence 1; fix: give the table the name that it had; if its changelog was deleted, "
            f"raise `version` in its topology.py, then `rebuild {service} --mirrored`"
        )

    def _fix(self) -> str:
        """How an operator gives positions back to a group that sends or copies."""
        service, group = self._topology.service, self._topology.group
        if all(each.repeatable for each in self._processors):
            return f"`reprocess {service}`"
        if self._topology.tables and not any(each.copies for each in self._processors):
            return f"raise `version` in its topology.py, then `rebuild {service} --mirrored`"
        earlier = ", of timers earlier by their wait" if any(each.delay_s for each in self._processors) else ""
        return (
            f"`kafka-consumer-groups --reset-offsets --to-datetime …` for group {group}, "
            f"to shortly before its last worker stopped{earlier}"
        )
