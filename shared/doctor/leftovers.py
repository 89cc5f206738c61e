"""Checks of what former versions of services have left behind: topics and local stores that nobody reads any more.

Only what a service that has gone on to the present version, by its positions, can't run any more: the checkout may be
ahead of what runs. The version before the present one stays, to go back to. Positions stay, too, and take no room: by
those of its successor a former release knows that it must not run. Events and commands are not of any version.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

from shared.doctor.finding import Finding, Severity, dev
from shared.doctor.snapshot import Snapshot
from shared.topology.topics import Topology


def check_topics(seen: Snapshot) -> Iterator[Finding]:
    present = {topic for topic, _ in seen.placement.copies} - seen.declared.keys()
    for former in _unused(seen):
        names = {former.parking.name, *(former.changelog(table).name for table in former.all_tables())}
        if left := sorted(names & present):
            pattern = "|".join(map(re.escape, left))
            yield Finding(
                Severity.NOTICE,
                "topic.left",
                f"topics of {former.group} are left, and {seen.topology(former.service).group} runs now",
                ", ".join(left),
                "they take disk on every broker that has a copy, and make brokers slower to start",
                dev("kafka", "topics", "--delete", "--topic", pattern),
            )


def check_stores(seen: Snapshot) -> Iterator[Finding]:
    for former in _unused(seen):
        # a group's name may begin with another's: accounts-v2-1 is no store of the instance v2-1 of accounts
        others = [f"{name}-" for name in _groups(seen) if name.startswith(f"{former.group}-")]
        for store in seen.stores:
            if store.name.startswith(f"{former.group}-") and not store.name.startswith(tuple(others)):
                yield Finding(
                    Severity.NOTICE,
                    "store.left",
                    f"a store of {former.group} is left, and {seen.topology(former.service).group} runs now",
                    str(store),
                    "it takes disk, and its rows are in changelogs as well",
                    shlex.join(["rm", "-r", str(store)]),
                )


def former_versions(topologies: Iterable[Topology]) -> Iterator[Topology]:
    """Each version that is older than the one that a service can go back to."""
    for topology in topologies:
        for version in range(1, topology.version - 1):
            yield replace(topology, version=version)


def _unused(seen: Snapshot) -> Iterator[Topology]:
    for former in former_versions(seen.topologies):
        if seen.positions.get(seen.topology(former.service).group) and not seen.members[former.group]:
            yield former


def _groups(seen: Snapshot) -> set[str]:
    """Those of all versions of all services."""
    versions = [(each, version) for each in seen.topologies for version in range(1, each.version + 2)]
    return {replace(topology, version=version).group for topology, version in versions}
