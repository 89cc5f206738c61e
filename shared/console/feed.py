"""One stream for all viewers: each frame is made and encoded once, and none while nobody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable


class Feed:
    """look: makes the next frame. Whoever takes frames too slowly misses some, and always gets a recent one."""

    def __init__(self, look: Callable[[], Awaitable[bytes]], every_s: float) -> None:
        self._look = look
        self._every_s = every_s
        self._next: asyncio.Future[bytes] | None = None
        self._looking: asyncio.Task[None] | None = None
        self.viewers = 0

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Frames from the next one on, for one viewer. Raises what `look` does."""
        self.viewers += 1
        try:
            while True:
                if self._looking is None or self._looking.done():
                    self._next = asyncio.get_running_loop().create_future()
                    self._looking = asyncio.create_task(self._keep_looking())
                assert self._next is not None
                yield await asyncio.shield(self._next)
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
                due.set_result(await self._look())
            except Exception as failure:
                due.set_exception(failure)
                due.exception()  # perhaps nobody waits for it
            self._next = asyncio.get_running_loop().create_future()
            await asyncio.sleep(max(0.0, began + self._every_s - time.monotonic()))
