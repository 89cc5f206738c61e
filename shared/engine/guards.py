"""Guards of the engine: they notice records left out, a lack of progress, topics that are gone, and rows that grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

import structlog

from shared.runtime.positions import Place

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

    def __init__(self, positions: Mapping[Place, int]) -> None:
        """positions: the requested offsets."""
        self.unseen = dict(positions)
        self._late: dict[Place, int] = {}

    def expect(self, place: Place, offset: int) -> None:
        """Reading continues at `offset`, which the engine has sought."""
        self.unseen[place] = offset
        self._late.pop(place, None)

    def must_reread(self, place: Place, first: int) -> bool:
        """first: the offset of the partition's first record, or where the reader went without finding one."""
        asked, late = self.unseen[place], self._late.get(place)
        if late is not None and first < late:
            log.warning("a fetched batch was dropped, read again", partition=place, began=late, begins=first)
        if first in (asked, late):
            del self.unseen[place]
            return False
        self._late[place] = first
        return True


class _Still(NamedTuple):
    position: int
    end: int
    since: float


class Watchdog:
    """Checks at intervals that this worker turns, and that it handles what it can read of every partition."""

    def __init__(self) -> None:
        self._still: dict[Place, _Still] = {}
        self._turned = (0, 0.0)
        self._checked = 0.0

    def check(self, turns: int, positions: Mapping[Place, int], ends: Mapping[Place, int], now: float) -> None:
        """Raises Standstill when the loop does not turn, or a position stays although more can be read.

        turns: of the engine's loop. positions: the next offsets to handle. ends: the last stable offsets; behind an
        open transaction nothing can be read, by no worker.
        After a pause, as of a machine that was suspended, nothing is known of the time between.
        """
        watched = now - self._checked < UNWATCHED_S
        self._checked = now
        self._check_turns(turns, now, watched)
        self._still = {place: still for place, still in self._still.items() if place in positions and watched}
        for place, position in positions.items():
            still = self._still.get(place)
            if still is None or still.position != position or still.end == ends[place]:
                self._still[place] = _Still(position, ends[place], now)
            elif now - still.since >= STANDSTILL_S:
                raise Standstill(
                    f"{place} has stayed at offset {position} for {now - still.since:.0f} s while more can be "
                    f"read, now up to {ends[place]}; fix: start the worker again"
                )

    def _check_turns(self, turns: int, now: float, watched: bool) -> None:
        before, since = self._turned
        if turns != before or not watched:
            self._turned = (turns, now)
        elif now - since >= STUCK_S:
            raise Standstill(f"its work has not gone on for {now - since:.0f} s; fix: start the worker again")


class Told(NamedTuple):
    """Something that others have to mend. place: the partition that stands; None when it is not one."""

    place: Place | None
    since: float
    reason: str


class OpenTransactions:
    """Since when partitions have been held back by a transaction: nothing behind its first record can be read."""

    def __init__(self) -> None:
        self._since: dict[Place, tuple[int, float]] = {}  # with the offset where the transaction begins
        self._logged: dict[Place, float] = {}

    def check(self, stable: Mapping[Place, int], ends: Mapping[Place, int], now: float) -> list[Told]:
        """Those that have lasted for TOLD_S; each is also logged, at long intervals.

        stable: the last stable offsets, as of later than `ends`.
        """
        held = {place: offset for place, offset in stable.items() if offset < ends[place]}
        since = {place: self._since.get(place, (-1, now)) for place in held}
        self._since = {at: since[at] if since[at][0] == offset else (offset, now) for at, offset in held.items()}
        told = {
            place: Told(
                place,
                begun,
                f"an open transaction of another producer, which began at offset {offset}, holds back what follows up "
                f"to {ends[place]}; fix: `doctor` names the producer and the command that ends its transaction",
            )
            for place, (offset, begun) in self._since.items()
            if now - begun >= TOLD_S
        }
        self._logged = {place: at for place, at in self._logged.items() if place in told and now - at < AGAIN_S}
        for place in told.keys() - self._logged.keys():
            _, since_s, reason = told[place]
            log.warning("records are held back", partition=place, for_s=round(now - since_s), reason=reason)
            self._logged[place] = now
        return list(told.values())


class Failures:
    """Since when the same has failed again and again, and why it failed last: by partition, or None for all of them."""

    def __init__(self) -> None:
        self._failed: dict[Place | None, Told] = {}

    def note(self, places: Iterable[Place | None], reason: str, now: float) -> None:
        for place in places:
            since = self._failed[place].since if place in self._failed else now
            self._failed[place] = Told(place, since, reason)

    def ended(self, places: Iterable[Place | None]) -> None:
        for place in places:
            self._failed.pop(place, None)

    def keep_only(self, places: Iterable[Place | None]) -> None:
        self.ended(self._failed.keys() - set(places))

    def __contains__(self, place: Place | None) -> bool:
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

    def check(self, changes: Mapping[Place, Mapping[bytes, bytes | None]]) -> None:
        """changes: encoded rows by key, by changelog partition. A changelog's largest row is logged as it doubles."""
        for place, rows in changes.items():
            changelog, size = place.topic, max(map(len, filter(None, rows.values())), default=0)
            if size >= LARGE_ROW_BYTES:
                self.largest[changelog] = max(size, self.largest.get(changelog, 0))
            if size >= max(LARGE_ROW_BYTES, 2 * self._told.get(changelog, 0)):
                self._told[changelog] = size
                key = next(key for key, row in rows.items() if row is not None and len(row) == size)
                log.warning(
                    "a row is large: what would make it larger than its topic takes is parked",
                    row=f"{place}, key {key!r}",
                    size_bytes=size,
                    fix="bound what its state or view keeps",
                )
