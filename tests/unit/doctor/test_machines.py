"""Machines on which stores or processes soon have no room are named, and how much they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.doctor.examine import examine
from shared.doctor.finding import Severity
from shared.doctor.machines import capacities
from shared.doctor.snapshot import Snapshot
from shared.privacy.persons import KEYS_FILE
from tests.accounts.topology import TOPOLOGY
from tests.unit.doctor.healthy import HEALTHY, A, B, member, only, told

MIB, GIB = 2**20, 2**30
ROOMY = {
    "memory_bytes": 400 * MIB,
    "memory_limit_bytes": 600 * MIB,
    "disk_bytes": 100 * GIB,
    "disk_free_bytes": 50 * GIB,
    "stores_bytes": 10 * GIB,
}
PARTITION = {"rows": 1_000_000, "size_bytes": GIB}


def on(second: dict[str, Any], partition: dict[str, int] = PARTITION, standbys: int = 1) -> Snapshot:
    """Two workers, of which the second's machine is like this, beside rows of this size in each partition."""
    cluster = told(member(A, machine=ROOMY), member(B, machine={**ROOMY, **second}))[TOPOLOGY.service]
    tables = {
        table: [each.model_copy(update=partition) for each in partitions]
        for table, partitions in cluster.cluster.tables.items()
    }
    known = cluster._replace(cluster=cluster.cluster.model_copy(update={"tables": tables}))
    settings = HEALTHY.settings.model_copy(update={"standbys": standbys})
    return replace(HEALTHY, told={TOPOLOGY.service: known}, settings=settings)


@pytest.mark.parametrize(
    ("machine", "code", "severity"),
    [
        ({"disk_free_bytes": GIB - 1, "stores_bytes": 8 * GIB}, "worker.disk", Severity.WARNING),
        ({"disk_free_bytes": 10 * GIB, "stores_bytes": 41 * GIB}, "worker.disk", Severity.WARNING),
        ({"disk_free_bytes": 200 * MIB, "stores_bytes": 8 * GIB}, "worker.disk", Severity.URGENT),
        ({"full_in_s": 95 * 3600}, "worker.disk", Severity.WARNING),
        ({"memory_bytes": 541 * MIB}, "worker.memory", Severity.WARNING),
        ({"disk_free_bytes": 3 * GIB, "stores_bytes": 4 * GIB}, "worker.small", Severity.WARNING),
    ],
)
def test_a_machine_with_little_room_is_named(machine: dict[str, int], code: str, severity: Severity) -> None:
    finding = only(on(machine))
    assert (finding.code, finding.severity) == (code, severity)
    assert B in finding.what + finding.evidence
    assert A not in finding.what + finding.evidence


def test_a_disk_is_told_when_it_will_be_full_at_the_present_growth() -> None:
    soon = only(on({"full_in_s": 95 * 3600}))
    assert soon.evidence.endswith("; as they grow now, they fill it in 95 h")
    assert soon.what.endswith("will be full in 95 h")
    assert only(on({"full_in_s": 95 * 3600, "disk_free_bytes": GIB - 1})).what.endswith("is nearly full")


def test_another_worker_is_a_cure_only_while_it_would_get_partitions() -> None:
    full = {"memory_bytes": 541 * MIB}
    assert only(on(full)).cure.endswith(", or on another machine: python3 dev.py worker accounts")
    many = [member(f"http://w{n}", machine={**ROOMY, **(full if n == 0 else {})}) for n in range(TOPOLOGY.partitions)]
    assert only(replace(HEALTHY, told=told(*many))).cure == "give http://w0 more memory"


def test_a_worker_with_a_full_disk_moves_to_another_and_leaves_the_keys_of_persons_where_they_are(
    tmp_path: Path,
) -> None:
    worker = f'python3 dev.py stop accounts --worker {B} && ONEFOLD_DATA_DIR="$LARGER"'
    seen = on({"disk_free_bytes": GIB - 1})
    wanted = ': "${LARGER:?a folder on a disk with 22.0 GiB free}"'
    assert only(seen).cure == f"{wanted} && {worker} python3 dev.py worker accounts"
    (tmp_path / KEYS_FILE).touch()
    here = replace(seen, settings=seen.settings.model_copy(update={"data_dir": tmp_path}))
    keys = f"ONEFOLD_PERSON_KEYS=sqlite:///{tmp_path}/{KEYS_FILE}"
    assert only(here).cure == f"{wanted} && {worker} {keys} python3 dev.py worker accounts"


@pytest.mark.parametrize(
    "machine",
    [
        {},
        {"disk_free_bytes": 2 * GIB, "stores_bytes": 8 * GIB},
        {"full_in_s": 97 * 3600},
        {"memory_bytes": None},
        {"memory_limit_bytes": None},
        {"memory_bytes": 540 * MIB},
    ],
)
def test_of_a_machine_with_room_nothing_is_said(machine: dict[str, int | None]) -> None:
    assert examine(on(machine)) == []


def test_what_rows_take_is_told_by_row_partition_and_worker() -> None:
    (found,) = capacities(on({}))
    assert (found.rows, found.workers) == (8_000_000, 2)
    assert found.row_bytes == pytest.approx(GIB / 1_000_000)
    assert (found.largest_partition_bytes, found.each_bytes, found.alone_bytes) == (GIB, 8 * GIB, 8 * GIB)
    (without,) = capacities(on({}, standbys=0))
    assert (without.each_bytes, without.alone_bytes) == (4 * GIB, 8 * GIB)
    (small,) = examine(on({"disk_free_bytes": 2 * GIB, "stores_bytes": 4 * GIB}))
    assert "8,000,000 of 1,074 bytes, the largest partition 1.0 GiB), as shared now 8.0 GiB a worker" in small.evidence
    assert small.cure.endswith("at least 9.0 GiB")
    (indexed,) = capacities(on({"active_bytes": 50 * GIB}))  # with an index of history, which no table shows
    assert (indexed.rows, indexed.alone_bytes, indexed.each_bytes) == (8_000_000, 50 * GIB, 50 * GIB)


def test_a_worker_that_is_alone_holds_all_rows_already() -> None:
    lone = on({"disk_free_bytes": 2 * GIB, "stores_bytes": 4 * GIB}, standbys=0)
    known = lone.told[TOPOLOGY.service]
    cluster = known.cluster.model_copy(update={"members": known.cluster.members[1:]})
    assert examine(replace(lone, told={TOPOLOGY.service: known._replace(cluster=cluster)})) == []


def test_workers_of_an_older_release_do_not_say() -> None:
    assert list(capacities(HEALTHY)) == []
