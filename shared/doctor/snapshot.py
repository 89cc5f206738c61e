"""What the checks know of a system: gathered once, so that they agree, and compared with nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from shared.http.cluster import Cluster
from shared.http.dead_letters import DeadLetter
from shared.kafka.brokers import Bounds
from shared.operations.provision import Placement, TopicSpec
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.topology.topics import Topology

OPEN_S = 3.0  # a worker's transaction takes milliseconds


class Unread(NamedTuple):
    """Records of a partition that a group has not read, from `first` on."""

    group: str
    place: Place
    first: int
    records: int


class Validity(NamedTuple):
    """Of a certificate, in seconds since the epoch."""

    begins: float
    ends: float


class Filled(NamedTuple):
    """A table that a sink fills. owner: who does, if that process lives. unread: offsets. waits_s: how long the oldest
    of them has. stands: whether nothing was written within a second, if anybody looked. reason: why it waits, as it has
    said itself. problem: why nothing is known.
    """

    service: str
    table: str
    owner: str = ""
    unread: int = 0
    waits_s: float = 0.0
    stands: bool = False
    reason: str = ""
    problem: str = ""


class Outstanding(NamedTuple):
    """An effect that is not done, as its row says. waits_s: since its last event, of some that are pending."""

    id: str
    phase: str
    target: str
    attempt: int
    reason: str = ""
    waits_s: float = 0.0


class Told(NamedTuple):
    """What the workers of a service say. url: of the one that was asked. effects: some that are not done."""

    url: str
    cluster: Cluster
    letters: Sequence[DeadLetter] = ()
    effects: Sequence[Outstanding] = ()


@dataclass(frozen=True)
class Snapshot:
    """settings: this process's, so that its durability is the declared one. declared, found: topics by name.

    bounds: of the declared topics' partitions, as far as they have leaders. members, positions: by group, members also
    of former versions' groups. stamped: when the brokers stamped a record, by its partition and offset, where that
    matters, and `now`, in seconds since the epoch. told: by service, as far as workers are known. stores: the folders
    of local stores on this machine. holder: the transactional id that `longest_open` belongs to; empty if no
    coordinator knows it, None if nobody can say. later: what was unread a second later, if anybody looked again.
    certificates: by whose they are. sinks: those that were begun.
    """

    settings: Settings
    topologies: Sequence[Topology]
    now: float
    placement: Placement
    declared: Mapping[str, TopicSpec] = field(default_factory=dict)
    found: Mapping[str, TopicSpec] = field(default_factory=dict)
    bounds: Mapping[Place, Bounds] = field(default_factory=dict)
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)
    positions: Mapping[str, Mapping[Place, int]] = field(default_factory=dict)
    stamped: Mapping[tuple[Place, int], float] = field(default_factory=dict)
    told: Mapping[str, Told] = field(default_factory=dict)
    stores: Sequence[Path] = ()
    holder: str | None = None
    later: Sequence[Unread] = ()
    certificates: Mapping[str, Validity] = field(default_factory=dict)
    sinks: Sequence[Filled] = ()

    def age_s(self, place: Place, offset: int) -> float | None:
        """For how long the record has been there; None if nobody knows."""
        stamp = self.stamped.get((place, offset))
        return None if stamp is None else max(0.0, self.now - stamp)

    def topology(self, service: str) -> Topology:
        return next(each for each in self.topologies if each.service == service)

    def open_from(self) -> Iterator[tuple[Place, int]]:
        """Where open transactions begin, those of workers among them."""
        return ((place, each.stable) for place, each in self.bounds.items() if each.stable < each.end)

    def long_open(self) -> dict[tuple[Place, int], float]:
        """For how many seconds each transaction has been open, of those that have for OPEN_S, by where it begins."""
        ages_s = {begun: self.age_s(*begun) or 0.0 for begun in self.open_from()}
        return {begun: age_s for begun, age_s in ages_s.items() if age_s >= OPEN_S}

    def longest_open(self) -> tuple[Place, int] | None:
        ages_s = self.long_open()
        return max(ages_s, key=ages_s.__getitem__, default=None)

    def in_sync(self, topic: str) -> int:
        """How many live copies in sync the worst partition of the topic has."""
        placed = [each for place, each in self.placement.copies.items() if place.topic == topic]
        return min((len(self.placement.brokers & {*each.in_sync}) for each in placed), default=0)

    def unread(self) -> Iterator[Unread]:
        for group, positions in self.positions.items():
            for place, position in positions.items():
                bounds = self.bounds.get(place)
                if bounds is not None and position < bounds.end:
                    first = max(position, bounds.start)
                    yield Unread(group, place, first, bounds.end - first)

    def oldest_letters(self) -> Iterable[tuple[Place, int]]:
        """The first record of each partition that a parked key begins with."""
        firsts: dict[Place, int] = {}
        for letter in (each for told in self.told.values() for each in told.letters):
            place = Place(letter.topic, letter.partition)
            firsts[place] = min(letter.offset, firsts.get(place, letter.offset))
        return firsts.items()
