"""How many records a batch takes, when it is committed, and when others get their turn on the loop."""

from __future__ import annotations

import asyncio
import time

from shared.engine.batch import Batch

POLL_RECORDS = 500  # with more, Python's garbage collector stalls the HTTP side
SLICE_S = 0.002  # then the HTTP side gets its turns
HTTP_TURNS = 3  # of the event loop: to read a request, to answer it, and one for a request that came meanwhile
PAUSE = 1.0  # between commits, in durations of the last one
RETRY_PAUSE_S = 0.5
MAX_RETRY_PAUSE_S = 5.0


class Pace:
    """limit: of records in a batch. failures: commits that have failed since the last one that did not."""

    def __init__(self) -> None:
        self.limit = POLL_RECORDS
        self.failures = 0
        self._slice_ends = 0.0
        self._pause_ends = 0.0
        self._company = 0  # how many commands may come until then

    def at_most(self, *, fills_batch: bool) -> int:
        """How many records to fetch. fills_batch: not only those of changelogs."""
        return self.limit if fills_batch else POLL_RECORDS

    def succeeded(self) -> None:
        self.failures = 0
        self.limit = min(POLL_RECORDS, self.limit * 2)

    def failed(self) -> float:
        """Returns how long to wait, in seconds, before the records are read again.

        The batch may have been too large for one transaction, for a slow broker, or for the time of a session.
        """
        self.failures += 1
        self.limit = max(1, self.limit // 2)
        pause_s: float = min(RETRY_PAUSE_S * 2 ** min(self.failures - 1, 10), MAX_RETRY_PAUSE_S)
        return pause_s

    def one_by_one(self) -> None:
        """Until batches succeed again: only so does the broker tell which record it refuses."""
        self.limit = 1

    def is_due(self, batch: Batch, fetched: int, is_committing: bool) -> bool:
        """Whether to commit the batch now, after a fetch of so many records of sources: of a full one, more wait.

        A commit costs the brokers the same however little it holds. So if records came during a commit, or it answered
        several callers, who may ask again, the next one waits for as long as that took, unless all are back earlier.
        """
        if batch.full or self.limit < POLL_RECORDS:
            return True
        if fetched >= POLL_RECORDS or is_committing:
            return False
        return 0 < self._company <= len(batch.outcomes) or time.monotonic() >= self._pause_ends

    def pause(self, took_s: float, done: Batch, waiting: Batch) -> None:
        """The commit of `done` has ended, and `waiting` is the next."""
        self._company = len(done.outcomes) + len(waiting.outcomes)
        pauses = waiting or len(done.outcomes) > 1
        self._pause_ends = time.monotonic() + (PAUSE * took_s if pauses else 0.0)

    async def yield_to_http(self) -> None:
        if time.monotonic() >= self._slice_ends:
            for _ in range(HTTP_TURNS):
                await asyncio.sleep(0)
            self._slice_ends = time.monotonic() + SLICE_S
