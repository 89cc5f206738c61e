"""Work that is spread unevenly is told with what would spread it, and only where it holds anything up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from shared.doctor.examine import examine
from shared.doctor.finding import Severity
from shared.doctor.snapshot import Snapshot
from shared.http.cluster import SourcePartition
from shared.runtime.status import HotKey, Load
from tests.accounts.topology import COMMANDS, TOPOLOGY
from tests.unit.doctor.healthy import HEALTHY, A, B, member, only, told

EVEN = {"records_per_s": 1_000.0, "bytes_per_s": 200_000.0, "busy": 0.06}
EVERY = range(TOPOLOGY.partitions)
MORE_PARTITIONS = "stop all services for python3 dev.py repartition --partitions 16"


def at_work(
    *ones: Mapping[str, Any], hot: HotKey | None = None, waiting: int = 0, workers: int = 2, topic: str = COMMANDS.name
) -> Snapshot:
    """The first partitions have these loads beside the even one of all others; the first also the key, and a lag."""
    urls = [f"http://w{number}" for number in range(workers)] if workers != 2 else [A, B]
    partitions = [
        SourcePartition(
            partition=number,
            active=urls[number % len(urls)],
            position=10,
            lag_records=waiting if number == 0 else 0,
            lag_seconds=0,
            load=Load(
                **{**EVEN, **(ones[number] if number < len(ones) else {})}, hot=[hot] if hot and not number else []
            ),
        )
        for number in EVERY
    ]
    known = told(*map(member, urls))[TOPOLOGY.service]
    cluster = known.cluster.model_copy(update={"topics": {topic: partitions}})
    return replace(HEALTHY, told={TOPOLOGY.service: known._replace(cluster=cluster)})


@pytest.mark.parametrize(
    ("load", "waiting", "measures"),
    [
        ({"records_per_s": 9_000.0}, 5_000, "of all 8 it has 56% of the records, 12% of the bytes, 12% of the time;"),
        ({"bytes_per_s": 1_800_000.0}, 5_000, "of all 8 it has 12% of the records, 56% of the bytes, "),
        ({"busy": 0.54}, 0, "of all 8 it has 12% of the records, 12% of the bytes, 56% of the time;"),
    ],
)
def test_a_partition_with_far_more_work_gets_a_worker(load: dict[str, float], waiting: int, measures: str) -> None:
    finding = only(at_work(load, waiting=waiting))
    assert (finding.code, finding.cure) == ("partition.hot", "python3 dev.py worker accounts")
    assert finding.severity == (Severity.WARNING if waiting else Severity.NOTICE)
    assert finding.what.startswith("accounts.commands.v1/0 of accounts")
    assert finding.evidence.startswith(measures)


@pytest.mark.parametrize(
    "seen",
    [
        at_work(),
        at_work({"records_per_s": 9_000.0, "bytes_per_s": 2e6, "busy": 0.49}, waiting=999),
        at_work(*[{"busy": 0.6}] * len(EVERY)),
        at_work({"busy": 0.17}, {"busy": 0.16}, waiting=5_000),
        at_work({"busy": 0.2}, waiting=5_000, topic="accounts.timers.v1"),
        at_work(hot=HotKey(key="bob", of_records=0.9, of_bytes=0.9, of_time=0.9)),
        at_work(hot=HotKey(key="bob", of_records=0.4, of_bytes=0.4, of_time=0.4), waiting=5_000),
        at_work({"busy": 0.6}, *[{"busy": 0.59}] * 7, workers=7),
        at_work({"busy": 0.4}, *[{"busy": 0.6}] * 7, workers=8),
    ],
)
def test_what_holds_nothing_up_is_not_told(seen: Snapshot) -> None:
    assert examine(seen) == []


def test_a_partition_that_has_a_worker_of_its_own_needs_a_faster_one() -> None:
    finding = only(at_work({"busy": 0.9}, workers=8))
    assert finding.cure == f"use a machine with faster cores for http://w0, or {MORE_PARTITIONS}"


@pytest.mark.parametrize(
    ("shares", "cure"),
    [
        ({"of_records": 0.8, "of_time": 0.6}, "give its parts ids of their own"),
        ({"of_bytes": 0.8}, "send less with each of its records"),
        ({"of_records": 0.1, "of_time": 0.7}, "bound what its state keeps"),
    ],
)
def test_a_hot_key_explains_a_hot_partition_and_has_a_remedy_of_its_own(shares: dict[str, float], cure: str) -> None:
    hot = HotKey(key="$(reboot)", **{**dict.fromkeys(("of_records", "of_bytes", "of_time"), 0.05), **shares})
    finding = only(at_work({"busy": 0.54}, hot=hot))
    assert (finding.code, finding.severity) == ("key.hot", Severity.NOTICE)
    assert finding.cure.startswith(cure)
    assert "'$(reboot)'" in finding.evidence
    assert "reboot" not in finding.cure + finding.what
    assert only(at_work({"busy": 0.1}, hot=hot, waiting=1_000)).severity == Severity.WARNING


def test_workers_that_are_all_busy_with_a_partition_each_can_not_be_more() -> None:
    finding = only(at_work(*[{"busy": 0.6}] * len(EVERY), workers=len(EVERY)))
    assert (finding.code, finding.severity) == ("partition.few", Severity.WARNING)
    assert "8 workers have one of 8 partitions each, and handle records for 60% to 60% of the time" in finding.evidence
    assert finding.cure == f"use machines with faster cores, or {MORE_PARTITIONS}"


@pytest.mark.parametrize(("first", "others", "is_told"), [(4, 1, True), (4, 2, False), (0.9, 0.1, False), (1, 0, True)])
def test_rows_that_are_spread_unevenly_are_told_once_they_are_many(first: float, others: float, is_told: bool) -> None:
    known = told()[TOPOLOGY.service]
    (table,) = known.cluster.tables
    sizes = [first, *[others] * (len(EVERY) - 1)]
    partitions = [
        each.model_copy(update={"size_bytes": int(size * 2**30), "rows": 1})
        for each, size in zip(known.cluster.tables[table], sizes, strict=True)
    ]
    cluster = known.cluster.model_copy(update={"tables": {table: partitions}})
    findings = examine(replace(HEALTHY, told={TOPOLOGY.service: known._replace(cluster=cluster)}))
    assert [(each.code, each.severity) for each in findings] == [("partition.large", Severity.NOTICE)] * is_told
