"""Only what no version can need any more is called left over."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

from shared.doctor.examine import examine
from shared.doctor.snapshot import Snapshot
from shared.operations.provision import Copies, Placement, declared_topics
from shared.runtime.positions import Place
from shared.topology.topics import Topology
from tests.accounts.topology import COMMANDS, TOPOLOGY
from tests.unit.doctor.healthy import BROKERS, SEEN, SETTINGS


def at_version(version: int, *stores: str, topics: tuple[str, ...] = ()) -> Snapshot:
    """All versions up to this one were here."""
    present = replace(TOPOLOGY, version=version)
    versions: list[Topology] = [replace(TOPOLOGY, version=each) for each in range(1, version + 1)]
    names = {name for each in versions for name in declared_topics([each], SETTINGS)}.union(topics)
    declared = declared_topics([present], SETTINGS)
    return replace(
        SEEN,
        topologies=[present],
        placement=Placement(frozenset(BROKERS), {Place(name, 0): Copies(BROKERS, BROKERS) for name in names}),
        declared=declared,
        found=declared,
        members={each.group: ["1 on a"] if each == present else [] for each in versions},
        positions={present.group: {Place(COMMANDS.name, 0): 10}},
        stores=[Path("/data", name) for name in stores],
    )


def test_the_version_before_the_present_one_is_kept_to_go_back_to() -> None:
    assert examine(at_version(2, "accounts-1", "accounts-v2-1")) == []


def test_older_versions_leave_changelogs_and_stores() -> None:
    stores = ("accounts-1", "accounts-v2-1", "accounts-v3-1", "accounts-v4-1", "accountsx-1")
    topics, store = examine(at_version(3, *stores, topics=("accounts-extra-changelog", "accounts.more.v1")))
    changelogs = [f"accounts-{table.name}-changelog" for table in TOPOLOGY.all_tables()]
    assert topics.evidence == ", ".join(sorted([*changelogs, "accounts.parking.v1"]))
    *words, pattern = shlex.split(topics.cure)
    assert words == ["python3", "dev.py", "kafka", "topics", "--delete", "--topic"]
    assert all(re.fullmatch(pattern, name) for name in topics.evidence.split(", "))
    assert not re.fullmatch(pattern, "accounts-parking-v1")
    assert store.cure == "rm -r /data/accounts-1"


def test_what_runs_is_not_left_over_however_far_ahead_the_checkout_is() -> None:
    seen = at_version(3, "accounts-1")
    assert {each.code for each in examine(seen)} == {"topic.left", "store.left"}
    ahead = replace(seen, positions={TOPOLOGY.group: {Place(COMMANDS.name, 0): 10}})
    assert examine(ahead) == []
    assert examine(replace(seen, members={**seen.members, TOPOLOGY.group: ["1 on a"]})) == []
