"""Guards of the engine: they notice records left out, a lack of progress, topics that are gone, and rows that grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

import structlog

from shared.runtime.positions import Partition

log = structlog.get_logger(__name__)

STANDSTILL_S = 120.0
STUCK_S = 300.0  # longer than all time-outs of a commit, its retries and its abort
TOLD_S = 30.0  # twice as long as the transaction of a worker that died
AGAIN_S = 300.0  # between two log lines about one that lasts
UNWATCHED_S = 60.0  # between two checks, many times as long as they are apart

LARGE_ROW_BYTES = 256 * 1024  # a quarter of what topics take by default


class Standstill(Exception):
    """This worker does not read what it could read, or has stopped altogether: another may do better.

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
    """Checks at intervals that this worker turns, and that it handles what it can read of every partition."""

    def __init__(self) -> None:
        self._still: dict[Partition, _Still] = {}
        self._turned = (0, 0.0)
        self._checked = 0.0

    def check(self, turns: int, positions: Mapping[Partition, int], ends: Mapping[Partition, int], now: float) -> None:
        """Raises Standstill when the loop does not turn, or a position stays although more can be read.

        turns: of the engine's loop. positions: the next offsets to handle. ends: the last stable offsets; behind an
        open transaction nothing can be read, by no worker.
        After a pause, as of a machine that was suspended, nothing is known of the time between.
        """
        watched = now - self._checked < UNWATCHED_S
        self._checked = now
        self._check_turns(turns, now, watched)
        self._still = {tp: still for tp, still in self._still.items() if tp in positions and watched}
        for tp, position in positions.items():
            still = self._still.get(tp)
            if still is None or still.position != position or still.end == ends[tp]:
                self._still[tp] = _Still(position, ends[tp], now)
            elif now - still.since >= STANDSTILL_S:
                raise Standstill(
                    f"{tp[0]}/{tp[1]} has stayed at offset {position} for {now - still.since:.0f} s while more can be "
                    f"read, now up to {ends[tp]}; fix: start the worker again"
                )

    def _check_turns(self, turns: int, now: float, watched: bool) -> None:
        before, since = self._turned
        if turns != before or not watched:
            self._turned = (turns, now)
        elif now - since >= STUCK_S:
            raise Standstill(f"its work has not gone on for {now - since:.0f} s; fix: start the worker again")


class Told(NamedTuple):
    """Something that others have to mend. place: the partition that stands; None when it is not one."""

    place: Partition | None
    since: float
    reason: str


class OpenTransactions:
    """Since when partitions have been held back by a transaction: nothing behind its first record can be read."""

    def __init__(self) -> None:
        self._since: dict[Partition, tuple[int, float]] = {}  # with the offset where the transaction begins
        self._logged: dict[Partition, float] = {}

    def check(self, stable: Mapping[Partition, int], ends: Mapping[Partition, int], now: float) -> list[Told]:
        """Those that have lasted for TOLD_S; each is also logged, at long intervals.

        stable: the last stable offsets, as of later than `ends`.
        """
        held = {tp: offset for tp, offset in stable.items() if offset < ends[tp]}
        since = {tp: self._since.get(tp, (-1, now)) for tp in held}
        self._since = {tp: since[tp] if since[tp][0] == offset else (offset, now) for tp, offset in held.items()}
        told = {
            tp: Told(
                tp,
                begun,
                f"an open transaction of another producer, which began at offset {offset}, holds back what follows up "
                f"to {ends[tp]}; fix: `doctor` names the producer and the command that ends its transaction",
            )
            for tp, (offset, begun) in self._since.items()
            if now - begun >= TOLD_S
        }
        self._logged = {tp: at for tp, at in self._logged.items() if tp in told and now - at < AGAIN_S}
        for tp in told.keys() - self._logged.keys():
            log.warning(
                "records are held back", partition=tp, for_s=round(now - told[tp].since), reason=told[tp].reason
            )
            self._logged[tp] = now
        return list(told.values())


class Failures:
    """Since when the same has failed again and again, and why it failed last: by partition, or None for all of them."""

    def __init__(self) -> None:
        self._failed: dict[Partition | None, Told] = {}

    def note(self, places: Iterable[Partition | None], reason: str, now: float) -> None:
        for place in places:
            since = self._failed[place].since if place in self._failed else now
            self._failed[place] = Told(place, since, reason)

    def ended(self, places: Iterable[Partition | None]) -> None:
        for place in places:
            self._failed.pop(place, None)

    def keep_only(self, places: Iterable[Partition | None]) -> None:
        self.ended(self._failed.keys() - set(places))

    def __contains__(self, place: Partition | None) -> bool:
        return place in self._failed

    def told(self, now: float) -> list[Told]:
        """Those that have lasted for TOLD_S."""
        return [each for each in self._failed.values() if now - each.since >= TOLD_S]


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
        self.largest: dict[str, int] = {}  # by changelog, of rows that are large, in bytes
        self._told: dict[str, int] = {}  # by changelog: the largest row when it was logged

    def check(self, changes: Mapping[Partition, Mapping[bytes, bytes | None]]) -> None:
        """changes: encoded rows by key, by changelog partition. A changelog's largest row is logged as it doubles."""
        for (changelog, partition), rows in changes.items():
            size = max(map(len, filter(None, rows.values())), default=0)
            if size >= LARGE_ROW_BYTES:
                self.largest[changelog] = max(size, self.largest.get(changelog, 0))
            if size >= max(LARGE_ROW_BYTES, 2 * self._told.get(changelog, 0)):
                self._told[changelog] = size
                key = next(key for key, row in rows.items() if row is not None and len(row) == size)
                log.warning(
                    "a row is large: what would make it larger than its topic takes is parked",
                    row=f"{changelog}/{partition}, key {key!r}",
                    size_bytes=size,
                    fix="bound what its state or view keeps",
                )
