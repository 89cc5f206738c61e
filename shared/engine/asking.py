"""Questions to the brokers, which may be away or elect leaders: asked until there is an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from shared.engine.guards import Failures
from shared.engine.pace import MAX_RETRY_PAUSE_S, RETRY_PAUSE_S
from shared.kafka.offsets import OffsetsUnknown

log = structlog.get_logger(__name__)

InThread = Callable[..., Awaitable[Any]]
"""Calls a function with its arguments in the one thread that uses the producer."""


class Asking:
    """asked: how often, so far. unanswered: since when there has been no answer."""

    def __init__(self, in_thread: InThread, is_interrupted: Callable[[], bool]) -> None:
        """is_interrupted: whether something else comes first, a rebalance or the worker's stop."""
        self.asked = 0
        self.unanswered = Failures()
        self._in_thread = in_thread
        self._is_interrupted = is_interrupted

    async def __call__(self, question: Callable[..., Any], *args: Any) -> Any:
        """The brokers' answer. Raises OffsetsUnknown when something else comes first."""
        pause_s = RETRY_PAUSE_S
        while not self._is_interrupted():
            self.asked += 1
            try:
                answer = await self._in_thread(question, *args)
                self.unanswered.ended([None])
                return answer
            except OffsetsUnknown as failure:
                name = question.__name__.strip("_")
                reason = f"the brokers give no final answer about {name}: {failure}"
                self.unanswered.note([None], reason, time.monotonic())
                log.warning("no final answer from the brokers, asking again", question=name, reason=str(failure))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_RETRY_PAUSE_S)
        raise OffsetsUnknown("a rebalance or a stop came first")
