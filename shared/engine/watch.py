"""Looks at the worker from beside its loop: what holds records back, and whether it may go on at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog

from shared.engine.asking import Asking
from shared.engine.guards import Failures, OpenTransactions, Standstill, Told, TopicGone, TopicGuard, Watchdog
from shared.engine.holdings import Holdings
from shared.engine.versions import VersionGuard, VersionRefused
from shared.kafka.offsets import AccessRefused, Offsets, OffsetsUnknown

log = structlog.get_logger(__name__)


class Watch:
    """uncommitted: since when batches could not be committed, by the partitions in them."""

    def __init__(
        self, holdings: Holdings, offsets: Offsets, version: VersionGuard, topic_guard: TopicGuard, ask: Asking
    ) -> None:
        self.uncommitted = Failures()
        self._holdings = holdings
        self._offsets = offsets
        self._version = version
        self._topic_guard = topic_guard
        self._ask = ask
        self._watchdog = Watchdog()
        self._open_transactions = OpenTransactions()
        self._held_back: Sequence[Told] = ()
        self._out_of_sync: Sequence[Told] = ()

    @property
    def troubles(self) -> Sequence[Told]:
        """What has kept records from being handled for a while, and is not to be mended by a new start."""
        now = time.monotonic()
        held_back = [each for each in self._held_back if each.place in self._holdings.sources]
        uncommitted = self.uncommitted.told(now)
        unanswered = self._ask.unanswered.told(now)
        return [*unanswered, *uncommitted, *(self._out_of_sync if uncommitted else ()), *held_back]

    async def look(self, turns: int) -> None:
        """turns: of the loop, so far. Raises what should end the worker, whatever its loop does."""
        try:
            await self._look(turns)
        except OffsetsUnknown:
            log.info("the broker does not answer, so a lack of progress means nothing")
        except Standstill as standstill:
            log.critical("the worker stops: it makes no progress", reason=str(standstill))
            raise
        except (TopicGone, AccessRefused, VersionRefused) as refusal:
            log.critical("the worker stops: it may not go on", reason=str(refusal))
            raise

    async def _look(self, turns: int) -> None:
        sources, offsets = self._holdings.sources, self._offsets
        watched = sources.keys() - self._holdings.unread()
        self._topic_guard.check(await asyncio.to_thread(offsets.topic_ids, self._holdings.own_topics))
        await self._version.refuse_if_superseded(asyncio.to_thread)
        ends = await asyncio.to_thread(offsets.ends, watched)
        stable = await asyncio.to_thread(offsets.stable_ends, watched)  # after the ends: no lower by then
        now = time.monotonic()
        self._held_back = self._open_transactions.check(stable, ends, now)
        self._out_of_sync = await self._find_out_of_sync(self.uncommitted.told(now))
        at_work = {
            each for each in watched & (sources.keys() - self._holdings.unread()) if sources[each].spreading is None
        }
        at_fault = {place: self._holdings.reached[place] for place in at_work if place not in self.uncommitted}
        self._watchdog.check(turns + self._ask.asked, at_fault, stable, now)

    async def _find_out_of_sync(self, uncommitted: Sequence[Told]) -> Sequence[Told]:
        """Where batches go that can't be committed, if copies are missing there. Raises OffsetsUnknown."""
        if not uncommitted:
            return ()
        processors = (each for readers in self._holdings.processors.values() for each in readers)
        written = {topic.name for each in processors for topic in each.writes}
        found = await asyncio.to_thread(self._offsets.out_of_sync, written | self._holdings.own_topics)
        why = "{} of {} copies are in sync, maybe too few to write; fix: start the brokers that hold the others"
        return [Told(place, uncommitted[0].since, why.format(*copies)) for place, copies in sorted(found.items())]
