"""Callers that wait for a commit here: for a command's outcome, a change of one row, or any progress at all."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress

from shared.engine.batch import Batch
from shared.runtime.positions import Committed, Place


class Answers:
    """Used on one loop."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, str], list[asyncio.Future[Committed]]] = {}
        self._partitions: dict[tuple[str, str], int] = {}  # of who waits for an outcome
        self._rows: dict[str, dict[bytes, set[asyncio.Event]]] = {}  # by changelog and key
        self._progress = asyncio.Event()
        self._for_progress = 0
        self._over = False

    @property
    def for_rows(self) -> int:
        """How many reads wait for a row to change."""
        return sum(len(watchers) for keys in self._rows.values() for watchers in keys.values())

    async def progress(self) -> None:
        """Returns when a source has advanced, or when partitions move."""
        self._for_progress += 1
        try:
            await self._progress.wait()
        finally:
            self._for_progress -= 1

    def await_rows_of(self, changelogs: Collection[str]) -> bool:
        """Whether anyone waits for a row of these, or for any progress, which may be theirs."""
        return self._for_progress > 0 or any(changelog in self._rows for changelog in changelogs)

    def expect(self, aggregate_id: str, command_id: str, partition: int) -> asyncio.Future[Committed]:
        """Completes when a command with these ids is decided and committed here. Call it before sending the command.

        Raises TimeoutError when the worker stops first, or the partition moves.
        """
        waiter: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        if self._over:
            waiter.set_exception(TimeoutError("the worker stops"))
        key = (aggregate_id, command_id)
        self._outcomes.setdefault(key, []).append(waiter)
        self._partitions[key] = partition
        waiter.add_done_callback(lambda _: self._forget(key, waiter))
        return waiter

    def _forget(self, key: tuple[str, str], waiter: asyncio.Future[Committed]) -> None:
        waiters = self._outcomes.get(key, [])
        with suppress(ValueError):
            waiters.remove(waiter)
        if not waiters:
            self._outcomes.pop(key, None)
            self._partitions.pop(key, None)

    @contextmanager
    def watch(self, changelog: str, key: bytes) -> Iterator[asyncio.Event]:
        """An event that is set after each commit that changed the row of `key` here, and when partitions move."""
        changed = asyncio.Event()
        keys = self._rows.setdefault(changelog, {})
        keys.setdefault(key, set()).add(changed)
        try:
            yield changed
        finally:
            keys[key].discard(changed)
            if not keys[key]:
                del keys[key]
            if not keys:
                del self._rows[changelog]

    def committed(self, batch: Batch, positions: Mapping[Place, int]) -> None:
        """Answer the callers that wait for `batch`. positions: the last offset it read or wrote, by partition."""
        self.tell_progress()
        if self._outcomes:
            for aggregate_id, outcome in batch.outcomes:
                for waiter in self._outcomes.get((aggregate_id, outcome.command_id), ()):
                    if not waiter.done():
                        waiter.set_result(Committed(outcome, positions))
        for (changelog, _), rows in batch.rows.items():
            keys = self._rows.get(changelog, {})
            for key in rows.changed.keys() & keys.keys():
                for changed in keys[key]:
                    changed.set()

    def wake_all(self) -> None:
        """Wake all that wait for a row or a position: another worker may own it now."""
        self.tell_progress()
        for changed in (changed for keys in self._rows.values() for watchers in keys.values() for changed in watchers):
            changed.set()

    def decide_only(self, partitions: Collection[int]) -> None:
        """Others decide in all other partitions: who waits for an outcome there would wait in vain."""
        for key, partition in self._partitions.items():
            if partition not in partitions:
                for waiter in self._outcomes[key]:
                    if not waiter.done():
                        waiter.set_exception(TimeoutError("the next owner decides"))

    def end(self) -> None:
        """Answer nothing any more: everything that waits fails, or looks again."""
        self._over = True
        self.decide_only(())
        self.wake_all()

    def tell_progress(self) -> None:
        """Wake all that wait for a position."""
        self._progress.set()
        self._progress = asyncio.Event()
