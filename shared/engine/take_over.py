"""Finds out, of an assignment, where its sources and rows are, or why they may not be taken. Changes nothing here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from uuid import uuid4

from shared.engine.asking import Asking
from shared.engine.following import followers
from shared.engine.guards import TopicGuard
from shared.engine.holdings import Holdings, Plan
from shared.engine.membership import Assignment
from shared.engine.processors import Processor
from shared.engine.reading import Reading
from shared.engine.sources import first_position
from shared.engine.versions import MixedReleases, VersionGuard
from shared.kafka.offsets import Offsets, OffsetsUnknown
from shared.kafka.transactions import TransactionAborted, TransactionalProducer
from shared.operations.provision import require_partitions
from shared.runtime.clock import BrokersClock, elapsed_s
from shared.runtime.positions import Place
from shared.runtime.routes import Role, Routes

_PAUSE_S = 0.05


class TakeOver:
    """sign: commits a note for the group member, without a position; blocking, raises OffsetsUnknown."""

    def __init__(
        self,
        holdings: Holdings,
        offsets: Offsets,
        producer: TransactionalProducer,
        reading: Reading,
        version: VersionGuard,
        topic_guard: TopicGuard,
        ask: Asking,
        sign: Callable[[Place, str], None],
        clock: BrokersClock,
        routes: Routes | None = None,
    ) -> None:
        self._routes = routes
        self.may_be_pending = True  # offsets that were aborted under our name: see `forget_pending`
        self._clock = clock
        self._holdings = holdings
        self._offsets = offsets
        self._producer = producer
        self._reading = reading
        self._version = version
        self._topic_guard = topic_guard
        self._ask = ask
        self._sign = sign

    async def plan(self, assignment: Assignment) -> Plan:
        """Raises OffsetsUnknown when a rebalance or a stop comes first, and what the guards raise.

        Committed offsets are read first: once they are stable, no predecessor can write, and the changelogs are final.
        """
        ask, offsets, replicas = self._ask, self._offsets, self._holdings.replicas
        actives = sorted(place for place in assignment.active if replicas.is_changelog(place))
        standbys = sorted(place for place in assignment.standby - assignment.active if replicas.is_changelog(place))
        sources = sorted(place for place in assignment.active if place.topic in self._holdings.processors)
        events = self._holdings.events_of(sources)
        self._refuse_added(sources)
        self._refuse_strays(sources, assignment.active)
        turns = [Place(self._holdings.topology.routes.name, n) for n in sorted({each.number for each in sources})]
        turns = [] if self._routes is None else turns
        committed = await ask(self._committed, [*sources, *turns], assignment.member)
        roles = {place.number: Role.of(committed.pop(place)) for place in turns}
        if all(role.acts for role in roles.values()):
            await self._version.refuse_if_superseded(ask)
        shadows = {number for number, role in roles.items() if not role.acts}
        followers, followed = await self._followed(shadows, roles)
        if set(committed.values()) == {None}:
            await self._version.refuse_if_it_would_repeat()
        starts = await ask(offsets.starts, {*sources, *actives, *standbys, *followed})
        asked_at = elapsed_s()
        ends = await ask(offsets.ends, {*sources, *actives, *standbys, *events, *followed})
        topic_ids = await ask(self._found_topics)
        self._topic_guard.check(topic_ids)
        acting = {place: position for place, position in committed.items() if place.number not in shadows}
        await self._version.refuse_changed_tables(acting, starts, ends)
        await self._reading.learn(place.topic for place in (*sources, *actives, *standbys, *followed))
        # an empty changelog stays empty while it tells that no record was handled
        read = {place for place in sources if committed[place]}
        handled = replicas.begun(read | {place for place in self._told_by(read) if committed.get(place) is not None})
        begun = [
            place for place in actives if place in handled or place.number in shadows or starts[place] < ends[place]
        ]
        written = await ask(self._written_ends, begun)
        if not self._clock.is_known and any(each.delay_s for place in sources for each in self._processors(place)):
            dead_letters = self._holdings.topology.dead_letters.name
            await ask(self._written_ends, [Place(dead_letters, sources[0].number)])  # tells the time
        for place in [place for place in sources if place.number in shadows and self._is_held_back(place)]:
            committed[place] = max(committed[place] or 0, starts[place])  # retention removes what others have handled
        positions = {place: first_position(place, committed[place], starts[place], ends[place]) for place in sources}
        # what is followed can be read twice, and what was removed tells nothing any more
        positions |= {
            place: at if starts[place] <= at <= ends[place] else starts[place]
            for place, at in followed.items()
            if place not in positions
        }
        self._version.warn_of_late_views({place for place in sources if positions[place] > starts[place]}, ends)
        new = {place for place in sources if committed[place] is None}
        positions |= {place: ends[place] for place in new if self._all_begin_late(place)}
        return Plan(
            positions, new, actives, standbys, events, starts, ends, asked_at, written, topic_ids, roles, followers
        )

    async def _followed(
        self, shadows: Set[int], roles: Mapping[int, Role]
    ) -> tuple[Mapping[str, Sequence[Processor]], Mapping[Place, int]]:
        """What to follow where another version acts, and from where on. Raises OffsetsUnknown."""
        if not shadows or self._routes is None:
            return {}, {}
        while not self._routes.read or any(self._is_news(number, roles[number]) for number in shadows):
            await self._ask(lambda: None)  # a rebalance or a stop comes first
            await asyncio.sleep(_PAUSE_S)
        topology = self._holdings.topology
        acting = {}
        for number in shadows:
            turn = self._routes.turn(number)
            assert turn is not None
            acting[number] = turn.giver if turn.version == topology.version else turn.version
        found = followers(topology, self._holdings.own, max(acting.values()))
        places = [Place(topic, number) for topic in found for number in sorted(shadows)]
        committed = await self._ask(self._offsets.committed, topology.group, places)
        return found, {place: at or 0 for place, at in committed.items()}

    def _is_news(self, number: int, role: Role) -> bool:
        """Whether the routes read so far don't say yet what the group has."""
        turn = None if self._routes is None else self._routes.turn(number)
        return turn is None or turn.number < role.number

    def _is_held_back(self, source: Place) -> bool:
        processors = self._processors(source)
        return bool(processors) and all(each.writes for each in processors)

    def _processors(self, source: Place) -> Sequence[Processor]:
        return self._holdings.processors[source.topic]

    def _all_begin_late(self, source: Place) -> bool:
        processors = self._processors(source)
        return bool(processors) and not any(each.from_start for each in processors)

    def _told_by(self, sources: Iterable[Place]) -> Iterator[Place]:
        """The sources of tables that records of these sources write to, too: history indexes, of what has ended."""
        for place in sources:
            for each in self._processors(place):
                if each.history_index is not None:
                    yield Place(each.history_index.source.name, place.number)

    def _refuse_added(self, sources: Sequence[Place]) -> None:
        """Raises TopologyMismatch for partitions added while this worker runs: rows of their keys are elsewhere."""
        declared = self._holdings.topology.partitions
        require_partitions({place.topic: place.number + 1 for place in sources if place.number >= declared}, declared)

    def _refuse_strays(self, sources: Iterable[Place], active: Set[Place]) -> None:
        """Raises MixedReleases for a source whose processors' rows are not assigned with it."""
        topology = self._holdings.topology
        for place in sources:
            tables = [table for each in self._processors(place) for table in each.tables]
            for table in (*tables, topology.parked):
                rows = Place(self._holdings.replicas.changelog(table), place.number)
                if rows not in active:
                    raise MixedReleases(
                        f"{place} was assigned without {rows.topic}, which workers of an older release in the group "
                        f"don't know; fix: stop all workers of {topology.service}, then start those of this release"
                    )

    def _committed(self, sources: Sequence[Place], member: bytes) -> Mapping[Place, int | None]:
        """What the group has committed, once no aborted offsets of ours are pending: our next commit could commit them.

        An idle worker clears its own, too: they would keep the owner of their partitions from reading its positions.
        The answer has to include what this worker has just signed. So it does not come from a coordinator that was
        superseded before this worker joined: a predecessor's commits would be missing, and their work done again.
        Blocking. Raises OffsetsUnknown.
        """
        topology = self._holdings.topology
        if self.may_be_pending:
            any_sources = sources or [Place(topology.parking.name, 0)]
            self._offsets.ends(any_sources)  # answers at once; the producer would wait for absent brokers
            try:
                self._producer.forget_pending(any_sources, member)
            except TransactionAborted as failure:
                cause = "the group has moved on and assigns again: " if failure.lost_membership else ""
                raise OffsetsUnknown(f"{cause}{failure}") from failure
        if not sources:
            self.may_be_pending = False
            return {}
        self.may_be_pending = True
        # no position is ever committed there; of the partitions that are ours, so that nobody else signs it
        own, signature = Place(self._holdings.replicas.changelog(topology.parked), sources[0].number), uuid4().hex
        self._sign(own, signature)
        positions = self._offsets.positions(topology.group, [*sources, own])
        if positions[own].note != signature:
            raise OffsetsUnknown("the group's coordinator has answered from the past: another leads in its place")
        self.may_be_pending = False
        return {place: positions[place].offset for place in sources}

    def _written_ends(self, changelogs: Sequence[Place]) -> Mapping[Place, int]:
        """Where our changelogs end: behind all that a predecessor has committed. Blocking. Raises OffsetsUnknown."""
        try:
            return self._producer.written_ends(changelogs) if changelogs else {}
        except TransactionAborted as failure:
            raise OffsetsUnknown(str(failure)) from failure

    def _found_topics(self) -> Mapping[str, str]:
        """The ids of all topics that this service reads, and of its changelogs. Blocking. Raises OffsetsUnknown."""
        own = self._holdings.own_topics
        found = self._offsets.topic_ids(own)
        if missing := own - found.keys():
            raise OffsetsUnknown(f"the brokers have no topic {min(missing)}")
        return found
