"""Computes views again from the first event: resets a group's positions and empties the views' changelogs.

The log stays as it is. Stopped at any point, this leaves a consistent state, though without what was in copies that
retention has removed, and running it again completes it. The views' own sources are rewound first: a row skips the
records it already includes, also in other views of that source, and what sends or copies passes over what it has
handled, as is noted in the same transaction, which also removes what is noted of the views' rows that have ended.
Then the changelogs are emptied. Only then, in one transaction, the topic before the copies is rewound, the copies made
so far are skipped, and both are noted for `parity` and `rebuild`; and what copies again passes over nothing any more.

A changelog's records are deleted, not followed by tombstones. Compaction removes tombstones in time, so a store that
was away for longer would keep its rows; a changelog that begins behind a store's position makes the engine wipe it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
)

from shared.domain.errors import OnefoldError
from shared.domain.row import Row
from shared.kafka.access import ANSWER_S, client_config
from shared.kafka.brokers import SETTLE_DEADLINE_S, Brokers, GroupIsLive, Positions, by_place, explained
from shared.kafka.transactions import Record
from shared.operations.provision import set_config
from shared.parking.parked import (
    BEGINS_ID,
    PARKED_CODEC,
    STOOD,
    OperatorRequest,
    clock_id,
    ended_id,
    is_noted_in,
    note_of,
    noted_id,
    partition_of_id,
    processor_of_id,
)
from shared.parking.requests import Begins, noted_begins, operator_requests
from shared.runtime.positions import Place
from shared.topology.replay import Replay
from shared.topology.topics import Cleanup, Topic, Topology

_PAUSE_S = 0.2


class HistoryIsCut(OnefoldError):
    """Retention has removed the source's first records: a view computed again would lack them.

    Operator action: do what the message says after `fix:`; nothing was changed.
    """


@dataclass(frozen=True, slots=True)
class Move:
    """The group's position in one partition. before: None where it never committed."""

    place: Place
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class ToEmpty:
    """One partition of a changelog to be emptied: its records are from `start` up to, not including, `end`."""

    changelog: Place
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done on the brokers. members: of the group now; they must stop first.

    positions: the group's present ones, which only a worker changes. moves: to its final positions. rewound: the starts
    of the views' own sources. ended: removes what is noted of their rows that have ended. notes: for `parity` and
    `rebuild`, written to the topic `parking`. begins: rows that note who passes over what was handled before. copying:
    the same without those that copy again, once the copies made so far are skipped.
    """

    group: str
    members: tuple[str, ...]
    changelogs: tuple[str, ...]
    positions: Mapping[Place, int]
    moves: tuple[Move, ...]
    emptied: tuple[ToEmpty, ...]
    rewound: Mapping[Place, int]
    ended: tuple[Record, ...]
    parking: str
    notes: tuple[OperatorRequest, ...]
    begins: tuple[Record, ...] = ()
    copying: tuple[Record, ...] = ()


class Reprocessing:
    """Blocking. Every method raises BrokersUnavailable."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._brokers = Brokers(bootstrap)
        self._admin = AdminClient(client_config(bootstrap) | {"log_level": 0})

    def plan(self, topology: Topology, replay: Replay) -> Plan:
        """The steps of `replay` as things are now; changes nothing. Raises HistoryIsCut."""
        group, changelogs = topology.group, tuple(topology.changelog(table).name for table in replay.tables)
        noted = noted_starts(self._brokers, topology, replay)
        again = self._starts(replay.again, noted)
        rewound = self._starts(replay.sources, noted, may_be_cut={topic.name for topic in replay.skipped})
        skipped = self._each(replay.skipped, self._brokers.settled_ends)
        before = self._positions(group)
        begins = noted_begins(self._brokers, topology)
        # where the group has no position, a worker begins by itself, its policies at the present
        again = {place: start for place, start in again.items() if place in before or place in noted}
        moves = (Move(place, before.get(place), after) for place, after in sorted((again | skipped).items()))
        return Plan(
            group,
            self._brokers.members(group),
            changelogs,
            positions=before,
            moves=tuple(move for move in moves if (move.before or 0) != move.after or skipped),
            emptied=tuple(part for changelog in changelogs for part in self._filled(changelog)),
            rewound={place: start for place, start in rewound.items() if place in before},
            ended=tuple(_ended(topology, replay)),
            parking=topology.parking.name,
            notes=tuple(_notes(replay, rewound | skipped)),
            begins=tuple(begin_where_it_stands(topology, replay, before, begins, copying=False)),
            copying=tuple(begin_where_it_stands(topology, replay, before, begins, copying=True))
            if replay.makers
            else (),
        )

    def carry_out(self, plan: Plan) -> None:
        """Raises GroupIsLive if a worker is in the group, or has been in it since `plan`."""
        self._refuse_changes(plan.group, plan.positions)
        if plan.rewound or plan.ended or plan.begins:
            self._brokers.commit_with(plan.group, _by_topic(plan.rewound), [*plan.ended, *plan.begins])
        for changelog in plan.changelogs:
            self._empty(changelog, [part for part in plan.emptied if part.changelog.topic == changelog])
        self._refuse_changes(plan.group, {**plan.positions, **plan.rewound})
        later = {move.place: move.after for move in plan.moves}
        notes = [Record(plan.parking, *note.record, partition_of_id(note.id)) for note in plan.notes]
        self._brokers.commit_with(plan.group, _by_topic(later), [*notes, *plan.copying])

    def empty(self, changelog: Topic) -> None:
        """Deletes the changelog's records; nobody may write it meanwhile."""
        self._empty(changelog.name, self._filled(changelog.name), changelog.cleanup)

    def refuse_members(self, group: str) -> None:
        """Raises GroupIsLive, naming the members, if there are any."""
        if members := self._brokers.members(group):
            raise GroupIsLive(
                f"{', '.join(members)} in the group {group}: stop every worker of it, then do this again. "
                "A killed worker counts until its session times out"
            )

    def _refuse_changes(self, group: str, positions: Mapping[Place, int]) -> None:
        """Raises GroupIsLive. A worker that came and went may have written rows from what it restored before."""
        self.refuse_members(group)
        if self._positions(group) != positions:
            raise GroupIsLive(
                f"a worker of the group {group} came and went meanwhile: stop whatever starts workers, "
                "then do this again"
            )

    def _positions(self, group: str) -> dict[Place, int]:
        return by_place(self._brokers.positions(group))

    def _starts(
        self, topics: Iterable[Topic], noted: Mapping[Place, int], may_be_cut: Set[str] = frozenset()
    ) -> dict[Place, int]:
        starts = self._each(topics, self._brokers.starts)
        for place, start in starts.items():
            if start > noted.get(place, 0) and place.topic not in may_be_cut:
                raise HistoryIsCut(
                    f"{place} begins at offset {start}: the records before it were removed; fix: `rebuild` "
                    f"from an archive that has them, or if they are copies, `reprocess` the whole service"
                )
        return {place: max(start, noted.get(place, 0)) for place, start in starts.items()}

    def _each(self, topics: Iterable[Topic], positions: Callable[[str], Positions]) -> dict[Place, int]:
        return by_place({topic.name: positions(topic.name) for topic in topics})

    def _filled(self, changelog: str) -> list[ToEmpty]:
        starts, ends = self._brokers.starts(changelog), self._brokers.settled_ends(changelog)
        return [ToEmpty(Place(changelog, p), starts[p], end) for p, end in sorted(ends.items()) if starts[p] < end]

    def _empty(self, changelog: str, parts: Iterable[ToEmpty], cleanup: Cleanup = "compact") -> None:
        """Deletes the records; the broker does so only while the topic's cleanup policy includes `delete`."""
        ends = [TopicPartition(*part.changelog, part.end) for part in parts]
        try:
            if ends:
                self._set_cleanup(changelog, "compact,delete")
                self._delete(ends)
        finally:
            self._set_cleanup(changelog, cleanup)

    def _set_cleanup(self, topic: str, policy: str) -> None:
        try:
            set_config(self._admin, topic, "cleanup.policy", policy)
        except KafkaException as failure:
            raise explained(self._bootstrap, failure) from failure

    def _delete(self, ends: list[TopicPartition]) -> None:
        """Retries until the partitions' leaders have learned of the topic's new policy."""
        deadline = time.monotonic() + SETTLE_DEADLINE_S
        while True:
            try:
                for future in self._admin.delete_records(ends, request_timeout=ANSWER_S).values():
                    future.result()
                return
            except KafkaException as failure:
                if failure.args[0].code() != KafkaError.POLICY_VIOLATION or time.monotonic() > deadline:
                    raise explained(self._bootstrap, failure) from failure
            time.sleep(_PAUSE_S)


def noted_starts(brokers: Brokers, topology: Topology, replay: Replay) -> dict[Place, int]:
    """Where the latest copies begin, after an earlier reprocessing: the copies before them no longer count."""
    sources = {table.name: table.source.name for table in replay.tables}
    return {
        Place(source, partition_of_id(request.id)): request.offset
        for request in operator_requests(brokers, topology)
        if request.action == "reprocess" and request.offset is not None
        if (source := sources.get(processor_of_id(request.id))) is not None and is_noted_in(request.id, source)
    }


def _by_topic(positions: Mapping[Place, int]) -> dict[str, dict[int, int]]:
    by_topic: dict[str, dict[int, int]] = defaultdict(dict)
    for place, offset in positions.items():
        by_topic[place.topic][place.number] = offset
    return by_topic


def begin_where_it_stands(
    topology: Topology, replay: Replay, before: Mapping[Place, int], noted: Mapping[int, Begins], *, copying: bool
) -> Iterator[Record]:
    """Rows that note where the group stands in what is read again, and that whoever acts on it begins there, or where
    it was to begin behind that. copying: but not those that copy again.

    noted: what is noted so far, which may name some that were passed long ago: it is written anew at take-overs alone.
    """
    makers = {(topic.name, name) for topic, name in replay.makers}
    acting = {(topic.name, name) for topic, name in replay.passing} | makers
    changelog = topology.changelog(topology.parked).name
    for number in range(topology.partitions):
        begins = {topic: dict(known) for topic, known in noted.get(number, {}).items()}
        for topic in {each.name for each in (*replay.sources, *replay.again)}:
            if (stands := before.get(Place(topic, number))) is not None:
                known = begins.get(topic, {})
                names = {STOOD, *known, *(name for source, name in acting if source == topic)}
                begins[topic] = {
                    name: max(stands, known.get(name, 0)) for name in names if not (copying and (topic, name) in makers)
                }
        if begins:
            row = PARKED_CODEC.encode(Row(1, note_of(number, begins), {}, 0))
            yield Record(changelog, BEGINS_ID.encode(), row, number)


def _ended(topology: Topology, replay: Replay) -> Iterator[Record]:
    """Of all partitions: notes stay where positions have expired, or where those are of the source it had before."""
    changelog = topology.changelog(topology.parked).name
    for table in (each for each in replay.tables if each.ends and not each.joins):
        for partition in range(topology.partitions):
            for note in (ended_id(table.name), *([clock_id(table.name)] if table.expires else ())):
                yield Record(changelog, note.encode(), None, partition)


def _notes(replay: Replay, begins: Mapping[Place, int]) -> Iterator[OperatorRequest]:
    for table in replay.tables:
        for place, start in begins.items():
            if place.topic == table.source.name and not table.joins:
                yield OperatorRequest(
                    action="reprocess", id=noted_id(f"{table.name}/{place.number}/", place.topic), offset=start
                )
