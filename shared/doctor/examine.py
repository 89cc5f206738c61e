"""All checks of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shared.doctor import certificates, effects, leftovers, machines, sinks, skew, topics, workers
from shared.doctor.finding import Finding
from shared.doctor.snapshot import Snapshot

CHECKS: tuple[Callable[[Snapshot], Iterator[Finding]], ...] = (
    topics.check_copies,  # before a setting that asks for them
    topics.check_settings,
    topics.check_partitions,
    topics.check_missing,  # `provision` makes nothing while others differ
    topics.check_transactions,
    topics.check_retention,
    workers.check_members,
    workers.check_pace,
    workers.check_answers,
    workers.check_troubles,
    workers.check_letters,
    workers.check_rows,
    workers.check_standbys,
    workers.check_lags,
    workers.check_clocks,
    workers.check_surplus,
    skew.check_keys,
    skew.check_partitions,
    skew.check_workers,
    skew.check_stores,
    sinks.check_sinks,
    effects.check_effects,
    certificates.check_certificates,
    machines.check_disks,
    machines.check_memory,
    machines.check_capacity,
    leftovers.check_topics,
    leftovers.check_stores,
)


def examine(seen: Snapshot) -> list[Finding]:
    """The worst first."""
    return sorted((each for check in CHECKS for each in check(seen)), key=lambda each: -each.severity)
