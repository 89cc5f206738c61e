"""What this worker holds: the sources that it reads, the rows that it keeps, and how far both are.

Changed by the engine and read by the HTTP side, both on the worker's loop.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from shared.engine.answers import Answers
from shared.engine.batch import Batch
from shared.engine.processors import Processor
from shared.engine.sources import Source
from shared.engine.wiring import by_source, codecs_of, expiring, lagging
from shared.runtime.positions import Place
from shared.runtime.routes import Role
from shared.tables.replicas import Replicas
from shared.tables.store import RowStore
from shared.topology.topics import Table, Topology


@dataclass(frozen=True, slots=True)
class Plan:
    """What a take-over has found out.

    positions: where to read each source from. new: the sources in which the group has no position. starts, ends: of all
    of them, of the changelogs and of the topics of our own events, as of `asked_at` (`elapsed_s`). written: the offset
    of a record of ours, aborted since, in changelogs that nobody else can write now. topic_ids: as of now, by name.
    roles: by partition, where versions may stand side by side. followers: of another version, by source.
    """

    positions: Mapping[Place, int]
    new: Set[Place]
    actives: Sequence[Place]
    standbys: Sequence[Place]
    events: Set[Place]
    starts: Mapping[Place, int]
    ends: Mapping[Place, int]
    asked_at: float
    written: Mapping[Place, int]
    topic_ids: Mapping[str, str]
    roles: Mapping[int, Role] = field(default_factory=dict)
    followers: Mapping[str, Sequence[Processor]] = field(default_factory=dict)


class Holdings:
    """sources, replicas: by partition. processors: by source. answers: whoever waits for a commit here.

    may_lag: the sources of our own events that nobody waits for, unless `is_lag_awaited`. expiring: those of views
    whose rows expire.

    parked: the ids of the parked keys, by partition, once a record of it was handled. handled, commits: since the
    worker has started.
    """

    def __init__(self, topology: Topology, processors: Sequence[Processor], stores: Mapping[str, RowStore]) -> None:
        self.topology = topology
        self._own_processors = by_source(topology, processors)
        self.processors: Mapping[str, Sequence[Processor]] = self._own_processors
        self.roles: Mapping[int, Role] = {}
        self.may_lag = lagging(self.processors)
        self.expiring = expiring(self.processors)
        self.sources: dict[Place, Source] = {}
        self.replicas = Replicas(topology, stores, codecs_of(topology, processors))
        self.answers = Answers()
        self.parked: dict[int, set[str]] = {}
        self.topic_ids: Mapping[str, str] = {}
        self.reached: dict[Place, int] = {}  # the next offset of each source, as of the last commit
        self.committed_at = 0.0
        self.handled = 0
        self.commits = 0
        views = (table for topic in self.may_lag for each in self.processors[topic] for table in each.tables)
        self._lagging_views = {self.replicas.changelog(table) for table in views}
        self._event_offsets: dict[Place, int] = {}  # the last offset of our own events, as of the last commit

    # Asked by the HTTP side.

    def position(self, table: Table, partition: int) -> int:
        """Offset of the last source record that rows read here include; -1 while there is none."""
        return self.reached.get(Place(table.source.name, partition), 0) - 1

    def event_offsets(self, partition: int) -> Mapping[Place, int]:
        """The last offset of this service's events in `partition`: rows read here include no later ones."""
        if not self.acts(partition):
            return {place: source.position - 1 for place, source in self.followed_in(partition) if self._is_own(place)}
        return {place: offset for place, offset in self._event_offsets.items() if place.number == partition}

    def _is_own(self, place: Place) -> bool:
        return place in self._event_offsets

    @property
    def is_lag_awaited(self) -> bool:
        """Whether a caller waits for a position, or for a row of a view of our own events."""
        return self.answers.await_rows_of(self._lagging_views)

    def parked_keys(self, partition: int) -> int:
        """How many keys are parked. Raises NotReady if the partition is not held here."""
        known = self.parked.get(partition)
        return len(known) if known is not None else sum(1 for _ in self.replicas.keys(self.topology.parked, partition))

    # What follows from the topology.

    @property
    def own(self) -> list[Processor]:
        """All processors but those that follow another version."""
        return [each for readers in self._own_processors.values() for each in readers]

    @property
    def own_topics(self) -> set[str]:
        """All that this service reads, and its changelogs."""
        return {*self._own_processors, *map(self.replicas.changelog, self.topology.all_tables())}

    def of(self, number: int) -> list[tuple[Place, Source]]:
        """The sources of the partition, but those that are only followed."""
        return [
            (place, source)
            for place, source in self.sources.items()
            if place.number == number and place.topic in self._own_processors
        ]

    def followed_in(self, number: int) -> list[tuple[Place, Source]]:
        """Those in which another version's work is followed."""
        return [(place, each) for place, each in self.sources.items() if place.number == number and each.followed]

    def acts(self, number: int) -> bool:
        """Whether this version acts in the partition, and no other."""
        return self.roles.get(number, Role()).acts

    def events_of(self, sources: Iterable[Place]) -> set[Place]:
        """Where the events go that records of these sources lead to."""
        writers = ((each.events, place.number) for place in sources for each in self.processors[place.topic])
        return {Place(events.name, number) for events, number in writers if events is not None}

    def followed(self) -> Iterator[Place]:
        """The changelogs that are read here, because others write them or they are being restored."""
        return (place for place, replica in self.replicas.held.items() if not replica.ours)

    def unread(self) -> set[Place]:
        """Sources that wait for a restore or a due time, and changelogs that only this worker writes now."""
        held = self.replicas.held.items()
        restoring = {place.number for place, replica in held if replica.active and not replica.restored}
        sources = {
            place
            for place, source in self.sources.items()
            if place.number in restoring or source.due_at or source.held_back
        }
        return sources | {place for place, replica in held if replica.ours}

    def restored(self) -> set[int]:
        """The partitions of which all rows are here that are written here."""
        return {place.number for place in self.sources.keys() - self.unread()}

    # Changed by the engine.

    def suspend(self) -> None:
        """Process nothing. Restored rows stay readable: nobody writes them before the group assigns again."""
        self.sources.clear()
        self.parked.clear()

    def drop(self) -> None:
        """Hold no rows any more: another worker may own our partitions now."""
        self.replicas.drop(self.replicas.held)
        self.answers.wake_all()

    def drop_changed(self, batch: Batch) -> None:
        """Drop the rows that the batch wrote: whether it took effect, only their changelogs can tell."""
        self.replicas.drop(place for place, rows in batch.rows.items() if rows.changed)

    def serve_only(self, active: Set[Place]) -> None:
        """Stop serving all other partitions at once: their new owners may write."""
        for place, replica in self.replicas.held.items():
            replica.active = replica.active and place in active
        self.answers.decide_only({place.number for place in active})
        self.answers.wake_all()

    def take(self, plan: Plan) -> None:
        self.roles = plan.roles
        self.processors = {**self._own_processors}
        for topic, followers in plan.followers.items():
            self.processors[topic] = [*self._own_processors.get(topic, ()), *followers]
        for place, position in plan.positions.items():
            self.sources[place] = self._source(place, position, plan)
        ends = {**plan.ends, **self.replicas.pass_written(plan.written)}
        self.replicas.hold(plan.actives, plan.standbys, plan.starts, ends, plan.topic_ids, plan.written)
        for place, replica in self.replicas.held.items():
            replica.learn_end(ends[place], plan.asked_at)
        self.topic_ids = plan.topic_ids
        self.reached = dict(plan.positions)
        self._event_offsets = {place: ends[place] - 1 for place in plan.events}
        self.answers.tell_progress()

    def _source(self, place: Place, position: int, plan: Plan) -> Source:
        own = self._own_processors.get(place.topic, ())
        if self.acts(place.number):
            return Source(place, own, position, plan.ends[place])
        followers = plan.followers.get(place.topic, ())
        processors = [*(each for each in own if not each.writes), *followers]
        held_back = not processors and place.topic != self.topology.parking.name
        return Source(place, processors, position, plan.ends[place], held_back=held_back, followed=bool(followers))

    def events_written(self, written: Mapping[Place, int]) -> None:
        """Before rows tell of these events: a position must not lie before them. written: the last offset, by place."""
        self._event_offsets = self._event_offsets | {
            place: written[place] for place in self._event_offsets.keys() & written.keys()
        }

    def committed(self, batch: Batch, written: Mapping[Place, int]) -> None:
        """written: the offset of its last record, by place."""
        self.commits += 1
        self.handled += batch.count
        self.reached |= batch.offsets
        self.committed_at = time.monotonic()
        for place, rows in batch.rows.items():
            if rows.changed:  # our commit marker follows our last record: nobody else writes this changelog
                self.replicas.held[place].position = written[place] + 2
        handled = {place: position - 1 for place, position in batch.offsets.items()}
        # the events last: they may be handled here, too, but not in the batch that writes them
        self.answers.committed(batch, {**handled, **written, **self._event_offsets})
