"""A worker's status, as it reports it to operators and peers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class ReplicaStatus(BaseModel):
    """One partition of a table held by a worker. Offsets are of the changelog.

    to_restore: records left until it is restored. restored_per_s: how many were restored in each second so far; left_s:
    how long the rest takes at that pace, null before the first. Both are null once it is restored, and from an older
    worker. lag_seconds: age of the newest applied record while others wait; null before the first.
    rows, size_bytes: of the store's files, entries of indexes among them; about as many, and null from an older worker.
    """

    table: str
    partition: int
    role: Literal["active", "standby"]
    restored: bool
    position: int
    target: int
    to_restore: int
    restored_per_s: float | None = None
    left_s: float | None = None
    lag_records: int
    lag_seconds: float | None
    rows: int | None = None
    size_bytes: int | None = None


class HotKey(BaseModel):
    """A key with a large part of the work of its partition; 1 is all of it."""

    key: str
    of_records: float
    of_bytes: float
    of_time: float


class Load(BaseModel):
    """The work of a partition over some seconds. busy: seconds of handling in each second, without commits."""

    records_per_s: float
    bytes_per_s: float
    busy: float
    hot: list[HotKey] = []


class SourceStatus(BaseModel):
    """One partition of a topic processed by a worker. position: the next offset to handle. Lags as above.

    handled, busy_s: records, and seconds of handling them, since the worker started; 0 from an older worker. load: null
    while nothing is handled, and from an older worker. held_back: another version handles it, so nothing lags here.
    """

    topic: str
    partition: int
    position: int
    lag_records: int
    lag_seconds: float | None
    held_back: bool = False
    handled: int = 0
    busy_s: float = 0.0
    load: Load | None = None


class Trouble(BaseModel):
    """What keeps a worker from handling records, for `for_s` seconds so far; it goes on by itself once that is over.

    topic, partition: null when it is not one partition that stands. reason: with what to do about it.
    """

    topic: str | None
    partition: int | None
    for_s: float
    reason: str


class Machine(BaseModel):
    """What a worker has of its machine. memory_bytes: of its process, in RAM; memory_limit_bytes: what that may become
    before the process is killed. Both are null where the system does not say. disk: the one with its stores, of which
    its own are `stores_bytes`; full_in_s: until they fill it, if they grew within a day by a tenth of what is free.
    active_bytes: of those, what no standby has; null from an older worker.
    """

    memory_bytes: int | None
    memory_limit_bytes: int | None
    disk_bytes: int
    disk_free_bytes: int
    stores_bytes: int
    full_in_s: float | None = None
    active_bytes: int | None = None


class Status(BaseModel):
    """One worker. owners: the URL of each partition's owner, by table, as of the group's last assignment.

    parked: how many keys are parked in each partition owned here. parked, troubles: empty from an older worker, which
    does not say.
    handled, commits, aborts: since the worker started. waiting: reads that wait for a row to change. clock_ahead_s: how
    far its machine's clock is ahead of the brokers'; 0 until a broker has told it the time, and from an older worker.
    large_rows: bytes of the largest row written since it started, by changelog, where it was a large one. machine: null
    from an older worker.
    """

    service: str
    instance: str
    url: str
    ready: bool
    idle: bool
    owners: dict[str, dict[int, str]]
    replicas: list[ReplicaStatus]
    sources: list[SourceStatus]
    parked: dict[int, int] = {}
    troubles: list[Trouble] = []
    handled: int
    commits: int
    aborts: int
    waiting: int
    clock_ahead_s: float = 0.0
    large_rows: dict[str, int] = {}
    machine: Machine | None = None
