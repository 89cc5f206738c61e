"""What the page shows, as data: each figure is the API's own, or a sum or a pace of such figures. Pure."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from shared.engine.processors import Processor
from shared.engine.wiring import topics_of
from shared.http.cluster import Cluster, Member, SourcePartition, Standby, TablePartition
from shared.http.dead_letters import DeadLetter
from shared.http.health import Standing
from shared.stories.tail import Newest
from shared.topology.topics import Topic, Topology

PACE_OF_S = 3.0  # a pace is of what was seen in this time


class Declared(BaseModel):
    """A service as its code declares it. reads, sends: topics. beside: whether its versions may stand side by side."""

    model_config = ConfigDict(frozen=True)

    name: str
    group: str
    version: int
    partitions: int
    reads: tuple[str, ...]
    sends: tuple[str, ...]
    beside: bool = False

    @classmethod
    def of(cls, topology: Topology, processors: Sequence[Processor], reads: Iterable[Topic] = ()) -> Declared:
        """reads: what no processor does, as a sink's source."""
        read, written = topics_of(topology, processors, reads)
        return cls(
            name=topology.service,
            group=topology.group,
            version=topology.version,
            partitions=topology.partitions,
            reads=tuple(sorted(read)),
            sends=tuple(sorted(written)),
            beside=bool(topology.tables),
        )


class ServicePartition(BaseModel):
    """One partition of a service: its tables and sources together. Fields as in `/cluster`; lags are sums, or the
    longest time; null where no worker knows.
    """

    partition: int
    owner: str | None
    restored: bool | None
    to_restore: int | None
    left_s: float | None
    lag_records: int | None
    lag_seconds: float | None
    standbys: Sequence[Standby]


class Source(BaseModel):
    """A topic that a service reads, without partitions whose owner does not answer. offsets_per_s: by how much its
    readers advanced; transactions' markers count.
    """

    topic: str
    lag_records: int
    lag_seconds: float | None
    offsets_per_s: float | None


class Letter(DeadLetter):
    """show: the command that shows it, as one types it in a shell: a stranger may have chosen its id."""

    show: str


class Shown(BaseModel):
    """A service. url: of the worker that was asked; problem: why none told anything.

    handled_per_s: records, of all its workers; null until there are two counts. parked: keys; null where not every
    partition told. standing: which version answers, as that worker knows it.
    """

    declared: Declared
    url: str | None = None
    problem: str | None = None
    members: Sequence[Member] = ()
    places: Sequence[ServicePartition] = ()
    sources: Sequence[Source] = ()
    handled_per_s: float | None = None
    parked: int | None = None
    letters: Sequence[Letter] = ()
    standing: Standing | None = None


class Version(BaseModel):
    """One version of a service. workers: members of its group now. begun: whether the group has positions, and so has
    handled records. declared: whether it is the one of this checkout.
    """

    version: int
    group: str
    workers: int
    begun: bool
    declared: bool


Versions = Mapping[str, Sequence[Version] | str]
"""By service: the versions that brokers tell of, or why they tell of none."""


Verb = Literal["parity", "rebuild", "deploy", "compare", "switch", "rollback", "retire"]
"""A command for a service that is started here."""


class Run(BaseModel):
    """at: when it began, seconds since the epoch. said: its last lines. exit_code: 0 if it was done, and null while it
    runs; of `parity` and `compare`, 1 if they differ.
    """

    service: str
    verb: Verb
    at: float
    said: Sequence[str]
    exit_code: int | None


class Picture(BaseModel):
    """What one frame of the stream holds. at: seconds since the epoch. doctor: what `doctor --json` prints, with `at`;
    or a `problem`; null before it has looked. acts: whether workers may be killed and added here.
    operator: who retries, discards and corrects dead letters here, if a token does not say it; null if nobody may.
    with_token: whether workers are sent one. own: whether it is a worker's, of its service alone; the viewer then asks
    for the dead letters, and there is no doctor. versions: of services whose brokers have answered. verbs: what may be
    run here. runs: what was, the newest of each service.
    """

    at: float
    services: Sequence[Shown]
    newest: Newest
    doctor: Mapping[str, Any] | None = None
    acts: bool = False
    operator: str | None = None
    with_token: bool = False
    own: bool = False
    versions: Versions = {}
    verbs: Sequence[Verb] = ()
    runs: Sequence[Run] = ()


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    counts: Mapping[str, float]


@dataclass
class Paces:
    """By how much named counts rise in a second. One that falls begins anew, as after a worker's restart."""

    samples: deque[_Sample] = field(default_factory=deque)

    def note(self, at: float, counts: Mapping[str, float]) -> None:
        """at: in seconds, later each time."""
        self.samples.append(_Sample(at, counts))
        while len(self.samples) > 2 and self.samples[1].at <= at - PACE_OF_S:
            self.samples.popleft()

    def of(self, names: Iterable[str]) -> float | None:
        """Of all of these together; None until one of them was counted twice."""
        if len(self.samples) < 2:
            return None
        first, last = self.samples[0], self.samples[-1]
        both = [name for name in names if name in first.counts and name in last.counts]
        risen = sum(max(0.0, last.counts[name] - first.counts[name]) for name in both)
        return risen / (last.at - first.at) if both else None


@dataclass
class Looks:
    """What earlier looks at a service have found, of which its paces are made."""

    advances: Paces = field(default_factory=Paces)
    handling: Paces = field(default_factory=Paces)

    def shown(
        self,
        declared: Declared,
        url: str,
        cluster: Cluster,
        letters: Sequence[Letter],
        at: float,
        standing: Standing | None = None,
    ) -> Shown:
        """url: of the worker that told. letters: the first ones. at: in seconds, later each time."""
        self.advances.note(at, positions_in(cluster))
        self.handling.note(at, {each.url: each.handled for each in cluster.members if each.handled is not None})
        places = places_in(cluster, declared)
        return Shown(
            declared=declared,
            url=url,
            members=cluster.members,
            places=places,
            sources=sources_in(cluster, self.advances),
            handled_per_s=self.handling.of(each.url for each in cluster.members),
            parked=parked_in(cluster, places),
            letters=letters,
            standing=standing,
        )


def letter_in(service: str, url: str, letter: DeadLetter) -> Letter:
    """url: of the worker that told of it."""
    show = ["python3", "dev.py", "dead-letters", "show", service, f"--url={url}", "--", letter.id]
    return Letter(**letter.model_dump(), show=shlex.join(show))


def positions_in(cluster: Cluster) -> dict[str, float]:
    """Where the service is in each partition that it reads, by `topic/partition`."""
    return {f"{topic}/{each.partition}": each.position for topic, some in cluster.topics.items() for each in some}


def sources_in(cluster: Cluster, paces: Paces) -> list[Source]:
    return [
        Source(
            topic=topic,
            lag_records=sum(each.lag_records for each in some),
            lag_seconds=_longest(each.lag_seconds for each in some),
            offsets_per_s=paces.of(f"{topic}/{each.partition}" for each in some),
        )
        for topic, some in cluster.topics.items()
    ]


def places_in(cluster: Cluster, declared: Declared) -> list[ServicePartition]:
    tables: dict[int, list[TablePartition]] = {number: [] for number in range(declared.partitions)}
    sources: dict[int, list[SourcePartition]] = {number: [] for number in range(declared.partitions)}
    for table in (each for some in cluster.tables.values() for each in some):
        tables.setdefault(table.partition, []).append(table)
    for source in (each for some in cluster.topics.values() for each in some):
        sources.setdefault(source.partition, []).append(source)
    return [_place(number, tables[number], sources.get(number, ())) for number in sorted(tables)]


def _place(number: int, tables: Sequence[TablePartition], sources: Sequence[SourcePartition]) -> ServicePartition:
    restored = [each.restored for each in tables]
    served = bool(restored) and all(restored)  # its owner answers, and names what it reads
    known = [each.to_restore for each in tables if each.to_restore is not None]
    standbys: dict[str, list[Standby]] = {}
    for standby in (each for table in tables for each in table.standbys):
        standbys.setdefault(standby.url, []).append(standby)
    return ServicePartition(
        partition=number,
        owner=next((each.active for each in tables if each.active is not None), None),
        restored=None if None in restored or not restored else all(restored),
        to_restore=sum(known) if known else None,
        left_s=_longest(each.left_s for each in tables),
        lag_records=sum(each.lag_records for each in sources) if sources or served else None,
        lag_seconds=_longest(each.lag_seconds for each in sources),
        standbys=[
            Standby(
                url=url,
                lag_records=sum(each.lag_records for each in some),
                lag_seconds=_longest(each.lag_seconds for each in some),
            )
            for url, some in sorted(standbys.items())
        ],
    )


def parked_in(cluster: Cluster, places: Iterable[ServicePartition]) -> int | None:
    """How many keys are parked; None while a partition has no owner that answers and knows."""
    if not all(each.restored for each in places):
        return None
    told = [each.parked for each in cluster.members if each.reachable]
    return None if None in told else sum(each or 0 for each in told)


def _longest(times_s: Iterable[float | None]) -> float | None:
    return max((each for each in times_s if each is not None), default=None)
