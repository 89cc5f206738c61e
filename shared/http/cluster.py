"""The status of the whole cluster, assembled from what each worker reports about itself."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from fastapi import Request
from pydantic import BaseModel

from shared.domain.errors import NotReady
from shared.http.node import Node
from shared.http.peers import Peers
from shared.runtime.status import Load, Machine, ReplicaStatus, SourceStatus, Status, Trouble


class Member(BaseModel):
    """A member of the consumer group. The other fields are null when it does not answer.

    handled: records since it started. parked: keys in the partitions that it owns.
    """

    url: str
    reachable: bool
    instance: str | None = None
    ready: bool | None = None
    idle: bool | None = None
    troubles: list[Trouble] | None = None
    handled: int | None = None
    parked: int | None = None
    clock_ahead_s: float | None = None
    large_rows: dict[str, int] | None = None
    machine: Machine | None = None

    @property
    def state(self) -> str:
        """In a word or two, for people."""
        if not self.reachable:
            return "silent"
        return "not ready" if not self.ready else "idle" if self.idle else "ready"


class Standby(BaseModel):
    """restored: whether it had all rows as of its beginning; null from an older worker."""

    url: str
    restored: bool | None = None
    lag_records: int
    lag_seconds: float | None


class TablePartition(BaseModel):
    """active: the owner's URL; null while there is none.

    to_restore: records still to restore; left_s: how long that takes; rows, size_bytes: see ReplicaStatus; null when
    unknown.
    """

    partition: int
    active: str | None
    restored: bool | None
    to_restore: int | None
    left_s: float | None = None
    rows: int | None = None
    size_bytes: int | None = None
    standbys: list[Standby]


class SourcePartition(BaseModel):
    partition: int
    active: str
    position: int
    lag_records: int
    lag_seconds: float | None
    held_back: bool = False
    load: Load | None = None


class Cluster(Status):
    """The status of the worker that was asked, followed by what is known about the whole cluster."""

    members: list[Member]
    tables: dict[str, list[TablePartition]]
    topics: dict[str, list[SourcePartition]]


async def whole_cluster(request: Request, node: Node, peers: Peers) -> Cluster:
    """Asks every member; one that gives no readable answer is shown as unreachable."""
    own = node.status()
    urls = sorted(node.members() | {own.url})
    answers = await asyncio.gather(*(_status_of(request, url, own, peers) for url in urls))
    return assemble(own, dict(zip(urls, answers, strict=True)), node.topology.partitions)


async def _status_of(request: Request, url: str, own: Status, peers: Peers) -> Status | None:
    if url == own.url:
        return own
    try:
        return await peers.ask(request, url, "/cluster", {}, Status.model_validate)
    except NotReady:
        return None


def assemble(own: Status, found: Mapping[str, Status | None], partitions: int) -> Cluster:
    """found: each member's status by URL; None when it did not answer."""
    statuses = {url: status for url, status in found.items() if status is not None}
    held = _held(statuses)
    return Cluster.model_construct(  # of parts that are valid
        **dict(own),
        members=[_member(url, status) for url, status in found.items()],
        tables={
            table: [
                _table_partition(partition, owners.get(partition), held[table, partition])
                for partition in range(partitions)
            ]
            for table, owners in own.owners.items()
        },
        topics=_topics(statuses),
    )


def _member(url: str, status: Status | None) -> Member:
    if status is None:
        return Member(url=url, reachable=False)
    same = {"instance", "ready", "idle", "troubles", "handled", "clock_ahead_s", "large_rows", "machine"}
    return Member(url=url, reachable=True, parked=sum(status.parked.values()), **status.model_dump(include=same))


def _held(statuses: Mapping[str, Status]) -> defaultdict[tuple[str, int], dict[str, ReplicaStatus]]:
    """Who holds what of each table and partition: by the holder's URL."""
    held: defaultdict[tuple[str, int], dict[str, ReplicaStatus]] = defaultdict(dict)
    for url, status in statuses.items():
        for each in status.replicas:
            held[each.table, each.partition][url] = each
    return held


def _table_partition(partition: int, owner: str | None, held: Mapping[str, ReplicaStatus]) -> TablePartition:
    active = next((replica for url, replica in held.items() if url == owner and replica.role == "active"), None)
    return TablePartition(
        partition=partition,
        active=owner,
        restored=active.restored if active else None,
        to_restore=active.to_restore if active else None,
        left_s=active.left_s if active else None,
        rows=active.rows if active else None,
        size_bytes=active.size_bytes if active else None,
        standbys=[
            Standby(
                url=url, restored=replica.restored, lag_records=replica.lag_records, lag_seconds=replica.lag_seconds
            )
            for url, replica in held.items()
            if replica.role == "standby"
        ],
    )


def _topics(statuses: Mapping[str, Status]) -> dict[str, list[SourcePartition]]:
    topics: dict[str, list[SourcePartition]] = {}
    for url, status in statuses.items():
        for source in status.sources:
            topics.setdefault(source.topic, []).append(_source_partition(url, source))
    return {topic: sorted(found, key=lambda each: each.partition) for topic, found in sorted(topics.items())}


def _source_partition(url: str, source: SourceStatus) -> SourcePartition:
    return SourcePartition(active=url, **dict(source))
