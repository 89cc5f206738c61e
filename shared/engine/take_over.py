"""Finds out, of an assignment, where its sources and rows are, or why they may not be taken. Changes nothing here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from uuid import uuid4

from aiokafka import TopicPartition

from shared.engine.asking import Asking
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
from shared.runtime.positions import Partition


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
        sign: Callable[[Partition, str], None],
        clock: BrokersClock,
    ) -> None:
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
        actives = sorted(tp for tp in assignment.active if replicas.is_changelog(tp))
        standbys = sorted(tp for tp in assignment.standby - assignment.active if replicas.is_changelog(tp))
        sources = sorted(tp for tp in assignment.active if tp.topic in self._holdings.processors)
        events = self._holdings.events_of(sources)
        self._refuse_added(sources)
        self._refuse_strays(sources, assignment.active)
        await self._version.refuse_if_superseded(ask)
        committed = await ask(self._committed, sources, assignment.member)
        if set(committed.values()) == {None}:
            await self._version.refuse_if_it_would_repeat()
        starts = await ask(offsets.starts, sources + actives + standbys)
        asked_at = elapsed_s()
        ends = await ask(offsets.ends, {*sources, *actives, *standbys, *events})
        topic_ids = await ask(self._found_topics)
        self._topic_guard.check(topic_ids)
        await self._version.refuse_changed_tables(committed, starts, ends)
        await self._reading.learn(tp.topic for tp in (*sources, *actives, *standbys))
        # an empty changelog stays empty while it tells that no record was handled
        read = {tp for tp in sources if committed[tp]}
        handled = replicas.begun(read | {tp for tp in self._told_by(read) if committed.get(tp) is not None})
        written = await ask(self._written_ends, [tp for tp in actives if tp in handled or starts[tp] < ends[tp]])
        if not self._clock.is_known and any(each.delay_s for tp in sources for each in self._processors(tp)):
            dead_letters = self._holdings.topology.dead_letters.name
            await ask(self._written_ends, [(dead_letters, sources[0].partition)])  # tells the time
        positions = {tp: first_position(tp, committed[tp], starts[tp], ends[tp]) for tp in sources}
        self._version.warn_of_late_views({tp for tp in sources if positions[tp] > starts[tp]}, ends)
        new = {tp for tp in sources if committed[tp] is None}
        positions |= {tp: ends[tp] for tp in new if self._all_begin_late(tp)}
        return Plan(positions, new, actives, standbys, events, starts, ends, asked_at, written, topic_ids)

    def _processors(self, source: TopicPartition) -> Sequence[Processor]:
        return self._holdings.processors[source.topic]

    def _all_begin_late(self, source: TopicPartition) -> bool:
        processors = self._processors(source)
        return bool(processors) and not any(each.from_start for each in processors)

    def _told_by(self, sources: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
        """The sources of tables that records of these sources write to, too: history indexes, of what has ended."""
        for tp in sources:
            for each in self._processors(tp):
                if each.history_index is not None:
                    yield TopicPartition(each.history_index.source.name, tp.partition)

    def _refuse_added(self, sources: Sequence[TopicPartition]) -> None:
        """Raises TopologyMismatch for partitions added while this worker runs: rows of their keys are elsewhere."""
        declared = self._holdings.topology.partitions
        require_partitions({tp.topic: tp.partition + 1 for tp in sources if tp.partition >= declared}, declared)

    def _refuse_strays(self, sources: Iterable[TopicPartition], active: Set[TopicPartition]) -> None:
        """Raises MixedReleases for a source whose processors' rows are not assigned with it."""
        topology = self._holdings.topology
        for tp in sources:
            tables = [table for each in self._processors(tp) for table in each.tables]
            for table in (*tables, topology.parked):
                rows = TopicPartition(self._holdings.replicas.changelog(table), tp.partition)
                if rows not in active:
                    raise MixedReleases(
                        f"{tp.topic}/{tp.partition} was assigned without {rows.topic}, which workers of an older "
                        f"release in the group don't know; fix: stop all workers of {topology.service}, then "
                        f"start those of this release"
                    )

    def _committed(self, sources: Sequence[Partition], member: bytes) -> Mapping[Partition, int | None]:
        """What the group has committed, once no aborted offsets of ours are pending: our next commit could commit them.

        An idle worker clears its own, too: they would keep the owner of their partitions from reading its positions.
        The answer has to include what this worker has just signed. So it does not come from a coordinator that was
        superseded before this worker joined: a predecessor's commits would be missing, and their work done again.
        Blocking. Raises OffsetsUnknown.
        """
        topology = self._holdings.topology
        if self.may_be_pending:
            any_sources = sources or [TopicPartition(topology.parking.name, 0)]
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
        own, signature = (self._holdings.replicas.changelog(topology.parked), sources[0][1]), uuid4().hex
        self._sign(own, signature)
        positions = self._offsets.positions(topology.group, [*sources, own])
        if positions[own].note != signature:
            raise OffsetsUnknown("the group's coordinator has answered from the past: another leads in its place")
        self.may_be_pending = False
        return {tp: positions[tp].offset for tp in sources}

    def _written_ends(self, changelogs: Sequence[Partition]) -> Mapping[Partition, int]:
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
