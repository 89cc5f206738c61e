"""What is left of memory and disk is told within the limits of a container."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from shared.runtime.machine import Growth, machine, memory_limit_bytes, resident_bytes

ALL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
MIB = 2**20


@pytest.mark.parametrize(
    ("place", "limits", "expected"),
    [
        ("0::/", {"": f"{64 * MIB}\n"}, 64 * MIB),  # in a container with a name space of its own
        ("9:memory:/old\n0::/pods/a", {"pods": f"{32 * MIB}\n", "pods/a": "max\n"}, 32 * MIB),
        ("0::/pods/a", {"pods": f"{32 * MIB}\n", "pods/a": f"{8 * MIB}\n"}, 8 * MIB),
        ("0::/", {"": f"{2 * ALL}\n"}, ALL),
        ("0::/", {}, ALL),
        ("9:memory:/old", {}, ALL),
    ],
)
def test_the_lowest_limit_counts(place: str, limits: dict[str, str], expected: int, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(f"{place}\n")
    for group, limit in limits.items():
        folder = tmp_path / "groups" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(limit)
    assert memory_limit_bytes(tmp_path, tmp_path / "groups") == expected


def test_another_system_does_not_say(tmp_path: Path) -> None:
    assert resident_bytes(tmp_path) is None
    assert memory_limit_bytes(tmp_path, tmp_path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say")
def test_a_process_has_less_than_its_limit_and_a_folder_that_is_not_there_yet_is_on_some_disk(tmp_path: Path) -> None:
    found = machine(tmp_path / "not" / "there", 7)
    assert MIB < (found.memory_bytes or 0) < (found.memory_limit_bytes or 0)
    assert 0 < found.disk_free_bytes < found.disk_bytes
    assert found.stores_bytes == 7


HOUR_S = 3_600.0


def test_what_grows_for_an_hour_fills_the_disk_at_some_time() -> None:
    growth = Growth()
    looks = [(0.0, 1_000, None), (0.9, 1_900, None), (1.0, 2_000, 10.0), (3.0, 2_000, 30.0), (3.1, 900, None)]
    for at_h, stores_bytes, full_in_h in looks:
        full_in_s = growth.full_in_s(at_h * HOUR_S, 10_000, stores_bytes, ["t/0"])
        assert full_in_s == (None if full_in_h is None else full_in_h * HOUR_S)


def test_partitions_that_come_or_are_restored_are_no_growth() -> None:
    growth = Growth()
    for at_h, stores_bytes, held in ((0, 0, ["t/0"]), (1, 5_000, ["t/0", "t/1"]), (2, 5_000, ["t/0", "t/1"])):
        assert growth.full_in_s(at_h * HOUR_S, 10_000, stores_bytes, held) is None
    assert growth.full_in_s(3 * HOUR_S, 10_000, 6_000, ["t/0", "t/1"]) == 20 * HOUR_S


def test_growth_is_that_of_the_last_day_and_compaction_is_none() -> None:
    growth, found = Growth(), list[float | None]()
    for at_h in range(60):
        stores_bytes = 99 * (at_h % 2) + (200 * (at_h - 30) if at_h > 30 else 0)
        found.append(growth.full_in_s(at_h * HOUR_S, 1_000, stores_bytes, ["t/0"]))
    assert found[:31] == [None] * 31
    assert None not in found[31:]
    assert found[59] == round(1_000 * 24 * HOUR_S / (200 * 24))
