"""Views from their start: a group's positions and the views' changelogs go back, and the log stays as it is.

Stopped at any point, what it leaves is whole, and doing it again completes it. The views' own sources are rewound
first: a row skips what it already holds. Then the changelogs are emptied. Only then, in one transaction, is the topic
before the copies rewound, are the copies so far skipped, and is that noted for `parity` and `rebuild`.

A changelog's records are deleted, not followed by tombstones. Compaction forgets those in time, so a store that was
away for longer would keep its rows; a changelog that begins behind a store's position tells the engine to wipe it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from shared.es.errors import OnefoldError
from shared.kafka.access import client_config
from shared.kafka.brokers import SETTLE_DEADLINE_S, Brokers, GroupIsLive, Positions, explained
from shared.kafka.offsets import REQUEST_TIMEOUT_S
from shared.kafka.transactions import Record
from shared.kafka.wishes import wishes
from shared.parking import Wish, partition_of_id, processor_of_id
from shared.positions import Partition
from shared.replay import Replay
from shared.topology import Topic, Topology

_PAUSE_S = 0.2


class HistoryIsCut(OnefoldError):
    """Retention has removed the source's first records: read again, the view would be of the rest only.

    Operator action: rebuild the view from the archive, which has them; nothing was changed.
    """


@dataclass(frozen=True, slots=True)
class Move:
    """The group's position in one partition. before: None where it never committed."""

    topic: str
    partition: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class Emptied:
    """One partition of a changelog that has records, the first at `start` and the last before `end`."""

    changelog: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done to the brokers. members: who is in the group now, and so is in the way.

    positions: of the group, until a worker goes on. moves: where it will be in the end. rewound: the beginnings of the
    views' own sources. notes: what `parity` and `rebuild` will read of it in the topic `parking`.
    """

    group: str
    members: tuple[str, ...]
    changelogs: tuple[str, ...]
    positions: Mapping[Partition, int]
    moves: tuple[Move, ...]
    emptied: tuple[Emptied, ...]
    rewound: Mapping[Partition, int]
    parking: str
    notes: tuple[Wish, ...]


class Reprocessing:
    """Blocking. Every method raises BrokersUnavailable."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._brokers = Brokers(bootstrap)
        self._admin = AdminClient(client_config(bootstrap) | {"log_level": 0})

    def plan(self, topology: Topology, replay: Replay) -> Plan:
        """What `replay` takes as things are now; changes nothing. Raises HistoryIsCut."""
        group, changelogs = topology.group, tuple(topology.changelog(table).name for table in replay.tables)
        noted = self._noted(topology, replay)
        again = self._starts(replay.again, noted)
        rewound = self._starts(replay.sources, noted)
        skipped = self._each(replay.skipped, self._brokers.settled_ends)
        before = self._positions(group)
        moves = (Move(*tp, before.get(tp), after) for tp, after in sorted((again | skipped).items()))
        return Plan(
            group,
            self._brokers.members(group),
            changelogs,
            positions=before,
            moves=tuple(move for move in moves if (move.before or 0) != move.after or skipped),
            emptied=tuple(part for changelog in changelogs for part in self._filled(changelog)),
            rewound={tp: start for tp, start in rewound.items() if tp in before},
            parking=topology.parking.name,
            notes=tuple(_notes(replay, rewound | skipped)),
        )

    def carry_out(self, plan: Plan) -> None:
        """Raises GroupIsLive when a worker is in the group, or was in it meanwhile."""
        self._refuse_changes(plan.group, plan.positions)
        if plan.rewound:
            self._move(plan.group, plan.rewound)
        for changelog in plan.changelogs:
            self._empty(changelog, [part for part in plan.emptied if part.changelog == changelog])
        self._refuse_changes(plan.group, {**plan.positions, **plan.rewound})
        later = {(move.topic, move.partition): move.after for move in plan.moves}
        notes = [Record(plan.parking, *note.record, partition_of_id(note.id)) for note in plan.notes]
        self._brokers.begin(plan.group, _by_topic(later), notes)

    def empty(self, changelog: str) -> None:
        """Deletes what it has, while nobody writes it."""
        self._empty(changelog, self._filled(changelog))

    def refuse_members(self, group: str) -> None:
        """Raises GroupIsLive, naming who lives."""
        if members := self._brokers.members(group):
            raise GroupIsLive(
                f"{', '.join(members)} in the group {group}: stop every worker of it, then do this again. "
                "One that was killed counts until its session times out"
            )

    def _refuse_changes(self, group: str, positions: Mapping[Partition, int]) -> None:
        """Raises GroupIsLive. A worker that came and went can have written rows of what it restored before."""
        self.refuse_members(group)
        if self._positions(group) != positions:
            raise GroupIsLive(
                f"a worker of the group {group} came and went meanwhile: keep everything stopped that starts one, "
                "then do this again"
            )

    def _positions(self, group: str) -> dict[Partition, int]:
        return {(topic, p): at for topic, known in self._brokers.positions(group).items() for p, at in known.items()}

    def _starts(self, topics: Iterable[Topic], noted: Mapping[Partition, int]) -> dict[Partition, int]:
        starts = self._each(topics, self._brokers.starts)
        for tp, start in starts.items():
            if start > noted.get(tp, 0):
                raise HistoryIsCut(f"{tp[0]}/{tp[1]} begins at offset {start}: what was before is gone")
        return {tp: noted.get(tp, start) for tp, start in starts.items()}

    def _noted(self, topology: Topology, replay: Replay) -> dict[Partition, int]:
        """Where copies begin that were made anew: the earlier ones count no more."""
        sources = {table.name: table.source.name for table in replay.tables}
        return {
            (sources[view], partition_of_id(wish.id)): wish.offset
            for wish in wishes(self._brokers, topology)
            if wish.action == "reprocess" and wish.offset is not None and (view := processor_of_id(wish.id)) in sources
        }

    def _each(self, topics: Iterable[Topic], positions: Callable[[str], Positions]) -> dict[Partition, int]:
        return {(topic.name, p): offset for topic in topics for p, offset in positions(topic.name).items()}

    def _filled(self, changelog: str) -> list[Emptied]:
        starts, ends = self._brokers.starts(changelog), self._brokers.settled_ends(changelog)
        return [Emptied(changelog, p, starts[p], end) for p, end in sorted(ends.items()) if starts[p] < end]

    def _move(self, group: str, positions: Mapping[Partition, int]) -> None:
        """Commits all of `positions` or none. Raises GroupIsLive: the broker refuses a group with members."""
        self._brokers.commit(group, _by_topic(positions))

    def _empty(self, changelog: str, parts: Iterable[Emptied]) -> None:
        """Deletes the records; the broker does that only while the topic is also of the kind that deletes."""
        ends = [TopicPartition(part.changelog, part.partition, part.end) for part in parts]
        try:
            if ends:
                self._set_cleanup(changelog, "compact,delete")
                self._delete(ends)
        finally:
            self._set_cleanup(changelog, "compact")

    def _set_cleanup(self, topic: str, policy: str) -> None:
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        futures = self._admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        try:
            futures[resource].result()
        except KafkaException as failure:
            raise explained(self._bootstrap, failure) from failure

    def _delete(self, ends: list[TopicPartition]) -> None:
        """The partitions' leaders learn of the topic's new policy a little later than it is set."""
        deadline = time.monotonic() + SETTLE_DEADLINE_S
        while True:
            try:
                for future in self._admin.delete_records(ends, request_timeout=REQUEST_TIMEOUT_S).values():
                    future.result()
                return
            except KafkaException as failure:
                if failure.args[0].code() != KafkaError.POLICY_VIOLATION or time.monotonic() > deadline:
                    raise explained(self._bootstrap, failure) from failure
            time.sleep(_PAUSE_S)


def _by_topic(positions: Mapping[Partition, int]) -> dict[str, dict[int, int]]:
    by_topic: dict[str, dict[int, int]] = defaultdict(dict)
    for (topic, partition), offset in positions.items():
        by_topic[topic][partition] = offset
    return by_topic


def _notes(replay: Replay, begins: Mapping[Partition, int]) -> Iterator[Wish]:
    for table in replay.tables:
        for (topic, partition), start in begins.items():
            if topic == table.source.name:
                yield Wish(action="reprocess", id=f"{table.name}/{partition}", offset=start)
