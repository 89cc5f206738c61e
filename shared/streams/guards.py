"""Guards of the engine's reading: one notices records that were left out, the other a lack of progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import structlog

from shared.positions import Partition

log = structlog.get_logger(__name__)

STANDSTILL_S = 120.0  # twice as long as another service's open transaction may hold back the records behind it


class Standstill(Exception):
    """Records keep coming, and the committed position of their partition does not move.

    Operator action: start the worker again. If it happens again, the log says what each attempt met.
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

    def check(self, positions: Mapping[Partition, int], ends: Mapping[Partition, int], now: float) -> None:
        """positions: the next offsets to handle. Raises Standstill when one stays although its partition grows."""
        self._still = {tp: still for tp, still in self._still.items() if tp in positions}
        for tp, position in positions.items():
            still = self._still.get(tp)
            if still is None or still.position != position or still.end == ends[tp]:
                self._still[tp] = _Still(position, ends[tp], now)
            elif now - still.since >= STANDSTILL_S:
                raise Standstill(
                    f"{tp[0]}/{tp[1]} has stayed at offset {position} for {now - still.since:.0f} s while its end "
                    f"moved on, now {ends[tp]}; fix: start the worker again"
                )
