"""Where a worker's work goes: to which partitions of its sources, and in each to which keys.

Of a slice of records one, chosen by chance, is handled by itself: its key, size and time stand for all of the slice,
and where there are many slices, also for others. So a busy key is known by count, bytes and time; that takes 5 µs of a
slice, about 1,000 times a second at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from shared.kafka.reader import ReadRecord
from shared.runtime.positions import Place
from shared.runtime.status import HotKey, Load

WINDOW_S = 5.0
SLICES = 5_000  # of a window, of which one record stands for all
MANY_KEYS = 5_000  # of a window: one that is hot is among the first
ENOUGH = 20  # records that were chosen: of fewer, chance would make any key look busy
OFTEN = 3  # a key that was chosen less often is not told: one slow moment would make it look busy
SHARE = 0.25  # of a partition's work: a key with less is not told


@dataclass(slots=True)
class Work:
    """chosen: how many records stand for it. seconds: handling, without commits."""

    chosen: int = 0
    records: int = 0
    size_bytes: int = 0
    seconds: float = 0.0

    def add(self, records: int, size_bytes: int, seconds: float) -> None:
        self.chosen += 1
        self.records += records
        self.size_bytes += size_bytes
        self.seconds += seconds

    def is_much_of(self, whole: Work) -> bool:
        return (
            self.records >= SHARE * whole.records
            or self.size_bytes >= SHARE * max(1, whole.size_bytes)
            or self.seconds >= SHARE * (whole.seconds or 1.0)
        )


@dataclass(slots=True)
class _ByKey:
    """The work of one partition in one window. hottest: as it was found once the window was over."""

    work: Work = field(default_factory=Work)
    keys: dict[bytes | None, Work] = field(default_factory=dict)
    hottest: list[HotKey] | None = None

    def hot(self) -> list[HotKey]:
        """Keys that make up SHARE of anything, the busiest first."""
        if self.hottest is None:
            self.hottest = self._find() if self.work.chosen >= ENOUGH else []
        return self.hottest

    def _find(self) -> list[HotKey]:
        whole = Work()
        for each in self.keys.values():
            whole.add(each.records, each.size_bytes, each.seconds)
        found = [each for each in self.keys.items() if each[1].chosen >= OFTEN and each[1].is_much_of(whole)]
        found.sort(key=lambda each: -each[1].seconds)
        return [_share(key, work, whole) for key, work in found]


class Heat:
    """totals: since the worker has started."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.totals: dict[Place, Work] = {}
        self._now = now
        self._random = Random(0)
        self._every = 1  # of so many slices, one stands for all
        self._began = now()
        self._window: dict[Place, _ByKey] = {}
        self._last: Mapping[Place, _ByKey] = {}
        self._last_s = self._ended = 0.0

    def choose(self, records: int) -> int | None:
        """The index of the record that stands for so many; None if another slice does."""
        index = int(self._random.random() * records * self._every)
        return index if index < records else None

    def note(self, place: Place, chosen: ReadRecord, records: int, alone_s: float, took_s: float) -> None:
        """alone_s: of the one that was chosen, of `records` that took so long together."""
        now = self._now()
        if now - self._began >= WINDOW_S:
            self._turn(now)
        records, took_s = records * self._every, took_s * self._every
        found = self._window.get(place)
        if found is None:
            found = self._window[place] = _ByKey()
        size_bytes = records * len(chosen.value or b"")
        found.work.add(records, size_bytes, took_s)
        key = found.keys.get(chosen.key)
        if key is None and len(found.keys) < MANY_KEYS:
            key = found.keys[chosen.key] = Work()
        if key is not None:
            key.add(records, size_bytes, records * alone_s)
        self.totals.setdefault(place, Work()).add(records, size_bytes, took_s)

    def _turn(self, now: float) -> None:
        """The next window begins."""
        self._every = max(1, sum(each.work.chosen for each in self._window.values()) * self._every // SLICES)
        self._last, self._last_s, self._ended = self._window, now - self._began, now
        if self._last_s > 2 * WINDOW_S:
            self._last = {}  # most of it was long ago
        self._window, self._began = {}, now

    def load(self, place: Place) -> Load | None:
        """In the last full window; None if there was none lately, or nothing in it."""
        found = self._last.get(place)
        if found is None or self._now() - self._ended > 2 * WINDOW_S:
            return None
        work = found.work
        per_s = [round(each / self._last_s, 3) for each in (work.records, work.size_bytes, work.seconds)]
        return Load(records_per_s=per_s[0], bytes_per_s=per_s[1], busy=per_s[2], hot=found.hot())


def _share(key: bytes | None, work: Work, whole: Work) -> HotKey:
    return HotKey(
        key=(key or b"").decode(errors="replace"),
        of_records=round(work.records / whole.records, 3),
        of_bytes=round(work.size_bytes / max(1, whole.size_bytes), 3),
        of_time=round(work.seconds / (whole.seconds or 1.0), 3),
    )
