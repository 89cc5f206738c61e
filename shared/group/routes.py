"""Keeps a worker's picture of the routes, and says which partitions it owns, for workers of other versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from mode import Service

from shared.kafka.producer import CommandProducer, ProducerFailed, SendError
from shared.runtime.routes import PARTITION, Routes, owner_key
from shared.topology.topics import Topology

log = structlog.get_logger(__name__)

POLL_MS = 300  # also how soon it is told who owns a partition now
PAUSE_S = 1.0


class RouteKeeper(Service):
    """owned: the partitions that are served here. url: where this worker is called. numbers: of the topic's
    partitions, those with turns, too, where the service does more than read.
    """

    def __init__(
        self,
        topology: Topology,
        routes: Routes,
        new_consumer: Callable[[], AIOKafkaConsumer],
        bootstrap: str,
        owned: Callable[[], Iterable[int]],
        url: str,
        numbers: Iterable[int] = (PARTITION,),
        **of_mode: Any,
    ) -> None:
        super().__init__(**of_mode)
        self._topology = topology
        self._topic = topology.routes.name
        self._routes = routes
        self._new_consumer = new_consumer
        self._bootstrap = bootstrap
        self._owned = owned
        self._url = url
        self._numbers = frozenset(numbers)
        self._producer: CommandProducer | None = None

    @Service.task
    async def _keep(self) -> None:
        while not self.should_stop:
            try:
                await self._follow()
            except KafkaError as failure:
                log.warning("the routes can't be read now: those known still count", reason=str(failure))
            await self.sleep(PAUSE_S)

    async def _follow(self) -> None:
        reader, tps = self._new_consumer(), [TopicPartition(self._topic, number) for number in sorted(self._numbers)]
        try:
            await reader.start()
            reader.assign(tps)
            await reader.seek_to_beginning(*tps)
            ends = await reader.end_offsets(tps)
            while not self.should_stop:
                fetched = await reader.getmany(*tps, timeout_ms=POLL_MS)
                passed_on = self._routes.passed_on(self._topology.version)
                for record in (record for records in fetched.values() for record in records):
                    self._routes.apply(record.key, record.value, record.partition)
                if passed_on != self._routes.passed_on(self._topology.version):
                    log.info("another version answers from now on, or this one again", active=self._routes.active)
                if self._routes.read or all([await reader.position(tp) >= end for tp, end in ends.items()]):
                    self._routes.read = True
                    await self._say_what_is_owned()
        finally:
            await reader.stop()

    async def _say_what_is_owned(self) -> None:
        """Whoever owned a partition before may have said so late: it is said again until it is what others read."""
        version = self._topology.version
        wrong = [number for number in self._owned() if self._routes.owner(version, number) != self._url]
        for number in wrong:
            try:
                self._producer = self._producer or CommandProducer(self._bootstrap, [self._topology])
                await self._producer.send(self._topic, owner_key(version, number), self._url.encode(), PARTITION)
            except ProducerFailed:
                self._producer = None
            except SendError as failure:
                log.warning("others are not told which partitions are owned here", reason=str(failure))
                return
