"""A stage's progress bar, with the rate and the time left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from shared.dev.stages import Stage

_DRAWN_EVERY = 50

T = TypeVar("T")
R = TypeVar("R")


def show(now: Stage, count: int, total: int, doing: str, start: int = 0) -> None:
    """start: the count when the stage began."""
    rate = (count - start) / max(now.seconds, 0.001)
    left = f"{(total - count) / rate:,.0f}" if rate else "?"
    now.progress(count, total, f"{doing}, {rate:,.0f}/s, {left} s left;")


def rate(count: int, now: Stage) -> str:
    """The stage's count per second so far."""
    return f"{count / max(now.seconds, 0.001):,.0f}/s"


async def for_each(work: Callable[[T], Awaitable[R]], items: Sequence[T], now: Stage, doing: str) -> list[R]:
    """The results of `work` for all items at once, in the items' order."""
    done = 0

    async def counted(item: T) -> R:
        nonlocal done
        result = await work(item)
        done += 1
        if done % _DRAWN_EVERY == 0:
            show(now, done, len(items), doing)
        return result

    return await asyncio.gather(*map(counted, items))
