"""What is left of memory and disk is told within the limits of a container."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from shared.runtime.machine import machine, memory_limit_bytes, resident_bytes

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
