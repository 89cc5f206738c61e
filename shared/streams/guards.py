"""Guards of the engine: they notice records left out, a lack of progress, topics that are gone, and rows that grow."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

import structlog

from shared.positions import Partition

log = structlog.get_logger(__name__)

STANDSTILL_S = 120.0  # twice as long as another service's open transaction may hold back the records behind it
UNWATCHED_S = 60.0  # between two checks, many times as long as they are apart

LARGE_ROW_BYTES = 256 * 1024  # a quarter of what topics take by default


class Standstill(Exception):
    """Records keep coming, and the committed position of their partition does not move.

    Operator action: start the worker again. If it happens again, the log says what each attempt met.
    """


class TopicGone(Exception):
    """A topic that this worker reads or writes rows to was deleted, or made again.

    Operator action: run `provision`, then start the worker again; docs/operations.md says what views need.
    """


class GapGuard:
    """Whether reading began at the requested offset: a first batch that was fetched and dropped would be lost for good.

    Transaction markers and compaction also leave gaps. So a partition that begins late is read again, and a late
    beginning is believed when it is found a second time.
    """

    def __init__(self, positions: Mapping[Partition, int]) -> None:
        """positions: the requested offsets."""
        self.unseen = dict(positions)
        self._late: dict[Partition, int] = {}

    def expect(self, partition: Partition, offset: int) -> None:
        """Reading continues at `offset`, which the engine has sought."""
        self.unseen[partition] = offset
        self._late.pop(partition, None)

    def must_reread(self, partition: Partition, first: int) -> bool:
        """first: the offset of the partition's first record, or where the reader went without finding one."""
        asked, late = self.unseen[partition], self._late.get(partition)
        if late is not None and first < late:
            log.warning("a fetched batch was dropped, read again", partition=partition, began=late, begins=first)
        if first in (asked, late):
            del self.unseen[partition]
            return False
        self._late[partition] = first
        return True


class _Still(NamedTuple):
    position: int
    end: int
    since: float


class Watchdog:
    """Checks at intervals that every partition makes progress."""

    def __init__(self) -> None:
        self._still: dict[Partition, _Still] = {}
        self._checked = 0.0

    def check(self, positions: Mapping[Partition, int], ends: Mapping[Partition, int], now: float) -> None:
        """positions: the next offsets to handle. Raises Standstill when one stays although its partition grows.

        After a pause, as of a machine that was suspended, nothing is known of the time between.
        """
        watched = now - self._checked < UNWATCHED_S
        self._still = {tp: still for tp, still in self._still.items() if tp in positions and watched}
        self._checked = now
        for tp, position in positions.items():
            still = self._still.get(tp)
            if still is None or still.position != position or still.end == ends[tp]:
                self._still[tp] = _Still(position, ends[tp], now)
            elif now - still.since >= STANDSTILL_S:
                raise Standstill(
                    f"{tp[0]}/{tp[1]} has stayed at offset {position} for {now - still.since:.0f} s while its end "
                    f"moved on, now {ends[tp]}; fix: start the worker again"
                )


class TopicGuard:
    """Whether topics are still those that were first seen: a deleted one, or its successor, looks like a quiet one."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._missing: Set[str] = frozenset()

    def check(self, found: Mapping[str, str]) -> None:
        """found: the ids of the topics that exist now, by name. Raises TopicGone.

        One has to be missing twice: a broker that has just started may not know it yet.
        """
        missing = self._ids.keys() - found.keys()
        changed = {topic for topic in self._ids.keys() & found.keys() if found[topic] != self._ids[topic]}
        gone, self._missing = changed | (missing & self._missing), missing
        if gone:
            raise TopicGone(f"{min(gone)} was deleted while this worker ran; fix: run `provision`, then start it again")
        self._ids.update(found)


class GrowthGuard:
    """Logs rows that grow, long before one is too large for its changelog, and what makes it so is parked."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}  # by changelog: the largest row

    def check(self, changes: Mapping[Partition, Mapping[bytes, bytes | None]]) -> None:
        """changes: encoded rows by key, by changelog partition. A changelog's largest row is logged as it doubles."""
        for (changelog, partition), rows in changes.items():
            size = max(map(len, filter(None, rows.values())), default=0)
            if size >= max(LARGE_ROW_BYTES, 2 * self._told.get(changelog, 0)):
                self._told[changelog] = size
                key = next(key for key, row in rows.items() if row is not None and len(row) == size)
                log.warning(
                    "a row is large: what would make it larger than its topic takes is parked",
                    row=f"{changelog}/{partition}, key {key!r}",
                    size_bytes=size,
                    fix="bound what its state or view keeps",
                )
