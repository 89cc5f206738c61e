"""What is left of the machine: memory and disk, as Linux says, within the limits of a container."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from shared.runtime.status import Machine

_PROC = Path("/proc/self")
_GROUPS = Path("/sys/fs/cgroup")
_HOUR_S, _DAY_S = 3_600.0, 86_400.0
_MUCH = 10  # such a part of what is free: before a compaction files take more for a while


def machine(data_dir: Path, stores_bytes: int) -> Machine:
    """As it is now, with the disk under the nearest folder of `data_dir` that exists."""
    folder = next(each for each in (data_dir.absolute(), *data_dir.absolute().parents) if each.exists())
    disk = shutil.disk_usage(folder)
    return Machine(
        memory_bytes=resident_bytes(),
        memory_limit_bytes=memory_limit_bytes(),
        disk_bytes=disk.total,
        disk_free_bytes=disk.free,
        stores_bytes=stores_bytes,
    )


def resident_bytes(proc: Path = _PROC) -> int | None:
    """What this process has in memory; None where the system does not say."""
    with suppress(OSError):
        return int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def memory_limit_bytes(proc: Path = _PROC, groups: Path = _GROUPS) -> int | None:
    """The lowest limit of the control groups (version 2) that this process is in, else all memory of the machine."""
    with suppress(OSError, ValueError):
        return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits(proc, groups)])
    return None


def _limits(proc: Path, groups: Path) -> Iterator[int]:
    for line in (proc / "cgroup").read_text().splitlines():
        if line.startswith("0::/"):
            group = groups / line.removeprefix("0::/")
            for each in (group, *group.parents):
                with suppress(OSError, ValueError):  # the root has none, and a group without a limit says "max"
                    yield int((each / "memory.max").read_text())


class Growth:
    """How fast this worker's stores grow, over the last day at most, as far as anybody asks."""

    def __init__(self) -> None:
        self._held: Collection[object] = ()
        self._hourly: deque[tuple[float, int]] = deque()  # the stores' size at a time

    def full_in_s(self, now: float, free_bytes: int, stores_bytes: int, held: Collection[object]) -> float | None:
        """Until they fill the disk; None unless they grow much, or before they have been seen for an hour.

        held: what has to be the same all the time: partitions that come, or are being restored, are no growth.
        """
        if held != self._held:
            self._held = held
            self._hourly.clear()
        if not self._hourly or now - self._hourly[-1][0] >= _HOUR_S:
            self._hourly.append((now, stores_bytes))
        while now - self._hourly[0][0] > _DAY_S:
            self._hourly.popleft()
        began, at_first = self._hourly[0]
        grown = stores_bytes - at_first
        much = grown > 0 and grown * _MUCH >= free_bytes
        return round(free_bytes * (now - began) / grown) if much and now - began >= _HOUR_S else None
