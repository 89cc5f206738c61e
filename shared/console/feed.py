"""One stream for all viewers: each frame is made and encoded once, and none while nobody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any


class Feed:
    """look: makes the next frame, or gives the last one where nothing is new. Whoever takes frames too slowly misses
    some, and always gets a recent one.
    """

    def __init__(self, look: Callable[[], Awaitable[bytes]], every_s: float) -> None:
        self._look = look
        self._every_s = every_s
        self._last: bytes | None = None
        self._next: asyncio.Future[bytes] | None = None
        self._looking: asyncio.Task[None] | None = None
        self.viewers = 0

    async def frames(self, over: asyncio.Future[Any] | None = None) -> AsyncGenerator[bytes, None]:
        """The last frame and those that follow, for one viewer, until `over` is done. Raises what `look` does."""
        self.viewers += 1
        given: bytes | None = None
        try:
            while True:
                if self._looking is None or self._looking.done():
                    self._last, self._next = None, asyncio.get_running_loop().create_future()
                    self._looking = asyncio.create_task(self._keep_looking())
                frame, due = self._last, self._next
                if frame is None or frame is given:
                    assert due is not None
                    await asyncio.wait([due] if over is None else [due, over], return_when=asyncio.FIRST_COMPLETED)
                    if not due.done():
                        return
                    frame = due.result()
                yield frame
                given = frame
        finally:
            self.viewers -= 1
            if not self.viewers and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _keep_looking(self) -> None:
        while True:
            began, due = time.monotonic(), self._next
            assert due is not None
            try:
                frame = await self._look()
                if frame is not self._last:
                    self._last = frame
                    due.set_result(frame)
            except Exception as failure:
                self._last = None
                due.set_exception(failure)
                due.exception()  # perhaps nobody waits for it
            if due.done():
                self._next = asyncio.get_running_loop().create_future()
            await asyncio.sleep(max(0.0, began + self._every_s - time.monotonic()))
