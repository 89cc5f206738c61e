"""Checks of how evenly work and rows are spread: partitions and keys that hold up a worker while others have time.

Only where it matters: a worker handles one record at a time, so a partition that takes half of its time, or that it
falls behind with, is soon as fast as it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shared.doctor.finding import Finding, Severity, dev
from shared.doctor.snapshot import Snapshot, Told
from shared.http.cluster import SourcePartition
from shared.runtime.status import HotKey, Load
from shared.topology.topics import Topology

_UNEVEN = 3  # times as much as the others have on average
_HALF = 0.5
_WAITING = 1_000  # records: less is done in a moment
_LARGE_BYTES = 2**30
_SHOWN_CHARS = 80
_MEASURES: tuple[tuple[str, Callable[[Load], float]], ...] = (
    ("records", lambda load: load.records_per_s),
    ("bytes", lambda load: load.bytes_per_s),
    ("time", lambda load: load.busy),
)


def check_keys(seen: Snapshot) -> Iterator[Finding]:
    """Keys that are half of the work of a partition that matters."""
    for service, _, topic, each in _at_work(seen):
        for key in _hot_keys(each):
            yield Finding(
                _severity(each),
                "key.hot",
                f"one key is {max(_shares(key).values()):.0%} of the work of {topic}/{each.partition} of {service}",
                f"{key.key[:_SHOWN_CHARS]!r} has {_told(_shares(key))}; {_work(each)}",
                "records of one key are handled one after another, however many workers and partitions there are",
                _remedy(key),
            )


def check_partitions(seen: Snapshot) -> Iterator[Finding]:
    """Partitions with far more work than the others, without a key that explains it."""
    for service, told, topic, each in _at_work(seen):
        shares = {name: _share(each, told, topic, of) for name, of in _MEASURES}
        others = len(told.cluster.topics[topic]) - 1
        uneven = [name for name, share in shares.items() if others and share * others >= _UNEVEN * (1 - share)]
        if uneven and not _hot_keys(each):
            yield Finding(
                _severity(each),
                "partition.hot",
                f"{topic}/{each.partition} of {service} has far more work than other partitions",
                f"of all {others + 1} it has {_told(shares)}; {_work(each)}",
                "one worker handles a partition, so the others can't help",
                _relieved(each, told, seen.topology(service)),
            )


def check_workers(seen: Snapshot) -> Iterator[Finding]:
    """Services in which each partition has a worker of its own, and all of these are busy."""
    for service, told in seen.told.items():
        topology, busy = seen.topology(service), _busy_by_worker(told)
        if len(busy) >= topology.partitions and all(each >= _HALF for each in busy.values()):
            yield Finding(
                Severity.WARNING,
                "partition.few",
                f"{service} has too few partitions for more workers",
                f"{len(busy)} workers have one of {topology.partitions} partitions each, and handle records for "
                f"{min(busy.values()):.0%} to {max(busy.values()):.0%} of the time, beside commits and requests",
                "another worker would be idle",
                f"use machines with faster cores, or {_more_partitions(topology)}",
            )


def check_stores(seen: Snapshot) -> Iterator[Finding]:
    """Partitions of tables whose rows take far more than those of the others."""
    for service, told in seen.told.items():
        for table, partitions in told.cluster.tables.items():
            sizes = {each.partition: each.size_bytes for each in partitions if each.size_bytes is not None}
            for partition, size in sizes.items():
                others = (sum(sizes.values()) - size) / max(1, len(sizes) - 1)
                if size >= max(_LARGE_BYTES, _UNEVEN * others) and len(sizes) > 1:
                    yield Finding(
                        Severity.NOTICE,
                        "partition.large",
                        f"partition {partition} of {table} of {service} has far more rows than the others",
                        f"its store has {size / 2**30:,.1f} GiB, the others {others / 2**30:,.1f} GiB on average",
                        "whoever owns it needs that disk, and restores for so much longer",
                        "give what comes under few ids there ids of their own; until then, a larger disk for its owner",
                    )


def _at_work(seen: Snapshot) -> Iterator[tuple[str, Told, str, SourcePartition]]:
    """Partitions that take half of a worker's time, or that wait. Timers that are not due yet wait as they should."""
    for service, told in seen.told.items():
        for topic, partitions in told.cluster.topics.items():
            for each in partitions:
                waits = each.lag_records >= _WAITING and ".timers." not in topic
                if each.load is not None and (waits or each.load.busy >= _HALF):
                    yield service, told, topic, each


def _hot_keys(partition: SourcePartition) -> Sequence[HotKey]:
    hot = partition.load.hot if partition.load is not None else ()
    return [each for each in hot if max(_shares(each).values()) >= _HALF]


def _share(one: SourcePartition, told: Told, topic: str, of: Callable[[Load], float]) -> float:
    """The partition's part of what there is in the topic."""
    whole = sum(of(each.load) for each in told.cluster.topics[topic] if each.load is not None)
    return of(one.load) / whole if one.load is not None and whole else 0.0


def _busy_by_worker(told: Told) -> dict[str, float]:
    """The part of its time for which each worker handles records."""
    busy = dict.fromkeys((member.url for member in told.cluster.members), 0.0)
    for each in (each for partitions in told.cluster.topics.values() for each in partitions):
        if each.load is not None:
            busy[each.active] = busy.get(each.active, 0.0) + each.load.busy
    return busy


def _severity(partition: SourcePartition) -> Severity:
    return Severity.WARNING if partition.lag_records >= _WAITING else Severity.NOTICE


def _work(partition: SourcePartition) -> str:
    load = partition.load or Load(records_per_s=0, bytes_per_s=0, busy=0)
    return (
        f"the partition has {load.records_per_s:,.0f} records and {load.bytes_per_s:,.0f} bytes a second, which take "
        f"{load.busy:.0%} of its worker's time, and {partition.lag_records:,} records wait"
    )


def _shares(key: HotKey) -> dict[str, float]:
    return {"records": key.of_records, "bytes": key.of_bytes, "time": key.of_time}


def _told(shares: dict[str, float]) -> str:
    return ", ".join(f"{share:.0%} of the {name}" for name, share in shares.items())


def _remedy(key: HotKey) -> str:
    """By what there is most of."""
    shares = _shares(key)
    match max(shares, key=shares.__getitem__):
        case "records":
            return "give its parts ids of their own, to be decided apart; for a view, `Rekey` by something else"
        case "bytes":
            return "send less with each of its records: a reference to what is large, in place of it"
        case _:
            return "bound what its state keeps, or what a command of it is decided from: each record reads all of that"


def _relieved(partition: SourcePartition, told: Told, topology: Topology) -> str:
    workers, owner = len(told.cluster.members), partition.active
    if workers < topology.partitions:
        return dev("worker", topology.service)
    return f"use a machine with faster cores for {owner}, or {_more_partitions(topology)}"


def _more_partitions(topology: Topology) -> str:
    return f"stop all services for {dev('repartition', '--partitions', str(2 * topology.partitions))}"
