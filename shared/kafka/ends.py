"""Where partitions end, asked of each leader apart: one that is silent holds back no answer of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Protocol

import structlog
from aiokafka.errors import KafkaError

from shared.runtime.positions import Place

log = structlog.get_logger(__name__)

WITHIN_MS = 2_000  # a read waits no longer
LEADERS_MS = 1_000  # how old what is known of the leaders may be; older while a broker that is asked does not answer


class Leaders(Protocol):
    """A consumer that knows who leads what, and can ask one of them alone."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def leader(self, place: Place) -> int | None: ...
    async def learn_leaders(self, topics: Collection[str]) -> None: ...
    async def ends_at(self, leader: int, places: Collection[Place]) -> dict[Place, int]: ...


class LeaderEnds:
    """For one event loop. Its connections are kept: to make one to a silent broker takes as long as it may be asked."""

    def __init__(self, new_consumer: Callable[..., Leaders]) -> None:
        self._new_consumer = new_consumer
        self._consumer: Leaders | None = None
        self._starting = asyncio.Lock()

    def leader(self, place: Place) -> int | None:
        """Its broker's id; None while that is not known."""
        return None if self._consumer is None else self._consumer.leader(place)

    async def of(self, leader: int | None, places: Collection[Place]) -> dict[Place, int]:
        """The high watermarks, if their leader gives them within WITHIN_MS. None as leader: to learn who leads them."""
        try:
            consumer = await self._started()
            if leader is not None:
                return await consumer.ends_at(leader, places)
            await consumer.learn_leaders({place.topic for place in places})
        except KafkaError as failure:
            log.info("a leader does not tell where its partitions end", leader=leader, reason=repr(failure))
        return {}

    async def stop(self) -> None:
        if self._consumer is not None:
            await self._consumer.stop()

    async def _started(self) -> Leaders:
        async with self._starting:
            if self._consumer is None:
                options: dict[str, Any] = {"request_timeout_ms": WITHIN_MS, "metadata_max_age_ms": LEADERS_MS}
                # the last stable offset would leave out what is committed, but not marked so yet
                consumer = self._new_consumer(isolation_level="read_uncommitted", **options)
                try:
                    await consumer.start()
                except BaseException:
                    await consumer.stop()
                    raise
                self._consumer = consumer
            return self._consumer
