"""Checks of workers' machines: disks and memory that are nearly used up, and what is left for when others are gone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.doctor.finding import Finding, Severity, dev
from shared.doctor.snapshot import Snapshot
from shared.http.cluster import Member
from shared.privacy.persons import KEYS_FILE, url_of
from shared.runtime.settings import Settings
from shared.runtime.status import Machine

_SPARE_BYTES = 2**30  # what RocksDB needs for a moment to make one file of several, and others for their logs
_LAST_BYTES = 2**28
_SPARE = 4  # or such a part of the stores themselves
_DUE_S = 4 * 86_400.0  # until a disk is full, as a long weekend
_FULL = 0.9  # of the memory limit


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the rows of a service take, by RocksDB's own estimates, which leave out what is not in files yet.

    rows, row_bytes, largest_partition_bytes: of its own tables, the others of all, as that of history.
    each_bytes: of one worker, on average, with its standbys. alone_bytes: of the last worker, once all others are gone:
    it then owns every partition, and stands by for none.
    """

    service: str
    workers: int
    rows: int
    row_bytes: float
    largest_partition_bytes: int
    each_bytes: int
    alone_bytes: int


def capacities(seen: Snapshot) -> Iterator[Capacity]:
    """Of each service whose workers say it."""
    for service, told in seen.told.items():
        workers = sum(member.reachable for member in told.cluster.members)
        machines = [member.machine for member in told.cluster.members if member.machine is not None]
        partitions = [each for table in told.cluster.tables.values() for each in table]
        known = [each.size_bytes for each in partitions if each.size_bytes is not None]
        if workers and known:
            rows, size = sum(each.rows or 0 for each in partitions), sum(known)
            copies = min(1 + seen.settings.standbys, workers)
            alone_bytes = max(size, sum(each.active_bytes or 0 for each in machines))
            each_bytes = alone_bytes * copies // workers
            yield Capacity(service, workers, rows, size / max(1, rows), max(known), each_bytes, alone_bytes)


def check_disks(seen: Snapshot) -> Iterator[Finding]:
    for service, member, machine in _machines(seen):
        free, full_in_s = machine.disk_free_bytes, machine.full_in_s
        nearly = free < max(_SPARE_BYTES, machine.stores_bytes // _SPARE)
        if nearly or (full_in_s is not None and full_in_s < _DUE_S):
            soon = "is nearly full" if nearly or full_in_s is None else f"will be full in {full_in_s / 3600:,.0f} h"
            yield Finding(
                Severity.URGENT if free < _LAST_BYTES else Severity.WARNING,
                "worker.disk",
                f"the disk with the stores of {member.url} of {service} {soon}",
                f"{_size(free)} of {_size(machine.disk_bytes)} are free, and its stores have "
                f"{_size(machine.stores_bytes)}"
                + (f"; as they grow now, they fill it in {full_in_s / 3600:,.0f} h" if full_in_s is not None else ""),
                "a store that can't be written is wiped and restored, again and again",
                _moved(service, member.url, machine.stores_bytes, seen.settings),
            )


def check_memory(seen: Snapshot) -> Iterator[Finding]:
    for service, member, machine in _machines(seen):
        used, limit = machine.memory_bytes, machine.memory_limit_bytes
        if used and limit and used > _FULL * limit:
            yield Finding(
                Severity.WARNING,
                "worker.memory",
                f"{member.url} of {service} is near its memory limit",
                f"its process has {_size(used)} of {_size(limit)}",
                "beyond it the process is killed, and its partitions move",
                f"give {member.url} more memory{_or_share(service, seen)}",
            )


def check_capacity(seen: Snapshot) -> Iterator[Finding]:
    """Whether the disks are large enough for the worst day."""
    for each in capacities(seen):
        short = [
            f"{member.url} has {_size(room)}"
            for service, member, machine in _machines(seen)
            if service == each.service and (room := machine.disk_free_bytes + machine.stores_bytes) < each.alone_bytes
        ]
        if short and each.workers > 1:
            yield Finding(
                Severity.WARNING,
                "worker.small",
                f"{len(short)} workers of {each.service} can't hold its rows alone",
                f"all stores take {_size(each.alone_bytes)} (rows: {each.rows:,} of {each.row_bytes:,.0f} bytes, the "
                f"largest partition {_size(each.largest_partition_bytes)}), as shared now {_size(each.each_bytes)} a "
                f"worker; {_some(short)}",
                "the last worker that is left owns every partition, and would fill its disk as it restores them",
                f"give ONEFOLD_DATA_DIR of each at least {_size(each.alone_bytes + _SPARE_BYTES)}",
            )


def _moved(service: str, url: str, stores_bytes: int, settings: Settings) -> str:
    """Another worker in its place, here or on another machine: stores are caches, and keys of persons are none."""
    wanted = f"a folder on a disk with {_size(2 * stores_bytes + 2 * _SPARE_BYTES)} free"
    are_beside = not settings.person_keys.get_secret_value() and (settings.data_dir / KEYS_FILE).exists()
    named = f"ONEFOLD_PERSON_KEYS={shlex.quote(url_of(settings))} " if are_beside else ""
    starts = f'ONEFOLD_DATA_DIR="$LARGER" {named}{dev("worker", service)}'
    return f': "${{LARGER:?{wanted}}}" && {dev("stop", service, "--worker", url)} && {starts}'


def _or_share(service: str, seen: Snapshot) -> str:
    """As long as another worker would get partitions of those."""
    if len(seen.told[service].cluster.members) >= seen.topology(service).partitions:
        return ""
    return f", or on another machine: {dev('worker', service)}"


def _machines(seen: Snapshot) -> Iterator[tuple[str, Member, Machine]]:
    for service, told in seen.told.items():
        for member in told.cluster.members:
            if member.machine is not None:
                yield service, member, member.machine


def _size(of_bytes: float) -> str:
    return f"{of_bytes / 2**30:,.1f} GiB" if of_bytes >= 2**30 else f"{of_bytes / 2**20:,.1f} MiB"


def _some(texts: Sequence[str]) -> str:
    return "; ".join(texts[:3]) + (f"; and {len(texts) - 3:,} more" if len(texts) > 3 else "")
