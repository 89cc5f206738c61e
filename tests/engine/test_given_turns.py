"""When a version gives its turn, and when it takes one: whatever it has read, and is read to it, meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from shared.engine.wiring import processors_of, wired
from shared.kafka.offsets import OffsetsUnknown
from shared.runtime.positions import Place
from shared.runtime.routes import TURN, Active, Role, Routes, Turn
from tests.carts.domain import DECIDER, ItemAdded
from tests.engine.assigned import Assigned
from tests.engine.baskets import baskets
from tests.faults.simulated import Broker

DEADLINE_S = 30.0


class Baskets:
    """The only worker of version 1, which goes on step by step. What version 2 would write is written by hand."""

    def __init__(self) -> None:
        self.service = baskets("baskets", 1)
        self.topology = self.service.topology
        later = replace(self.topology, version=2)
        topics = [topic.name for each in (self.topology, later) for topic in each.all_topics()]
        tales = "tales-of-baskets.commands.v1"
        self.broker = Broker(dict.fromkeys([*topics, tales]), 1, random.Random(3), self.topology.group)
        self.place = Place(self.topology.routes.name, 0)
        self.routes = Routes()
        self._heard = 0
        self.start()

    def start(self) -> None:
        """As another process, whose stores are empty."""
        processors = wired(self.topology, processors_of(self.service))
        self.worker = Assigned(
            self.broker, "worker", 0, topology=self.topology, processors=processors, routes=self.routes
        )

    def say(self, key: bytes, value: bytes | None) -> None:
        self.broker.stamp(self.place, key, value, None)
        self.hear()

    def active(self, version: int) -> None:
        self.say(*Active(version=version, former=3 - version).record)

    def turn(self, number: int, version: int) -> None:
        self.say(TURN, Turn(number=number, version=version, giver=3 - version).model_dump_json().encode())

    def hear(self) -> None:
        for record in self.broker.visible(self.place, self._heard):
            self.routes.apply(record.key, record.value, 0)
            self._heard = record.offset + 1

    @property
    def role(self) -> Role:
        return Role.of(self.broker.committed.get(self.place))

    async def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < deadline
            await self.worker.engine.step()
            self.hear()
            await asyncio.sleep(0.005)  # turns that are ready wait for others

    async def begin(self) -> None:
        """It acts, and all is read."""
        self.routes.read = True
        self.active(1)
        self.turn(0, version=1)
        await self.worker.start()
        await self.until(lambda: self.role.acts)
        await self.worker.go_on()

    async def gives(self) -> None:
        self.active(2)
        await self.until(lambda: not self.role.acts)
        await self.worker.go_on()


def added(sequence: int) -> tuple[bytes, bytes]:
    written = DECIDER.event_codec.write(
        ItemAdded(item="map"),
        event_id=f"event-{sequence}",
        aggregate_id="cart-1",
        sequence=sequence,
        occurred_at=datetime.now(UTC),
        correlation_id="one",
        causation_id=None,
    )
    return b"cart-1", written


def test_a_turn_is_not_taken_before_it_is_known_what_is_parked() -> None:
    async def scenario() -> None:
        shop = Baskets()
        await shop.begin()
        await shop.gives()
        shop.broker.append("baskets.events.v1", added(3), None)  # there was no first one: it can't be followed
        parked = Place(shop.topology.changelog(shop.topology.parked).name, 0)
        await shop.until(lambda: b"follow.baskets.events.v1/0/cart-1" in shop.broker.latest(parked))
        shop.active(1)
        shop.turn(2, version=1)
        shop.start()
        await shop.worker.start()
        await shop.until(lambda: 0 in shop.worker.engine.holdings.restored())
        await shop.worker.go_on()
        assert not shop.role.acts

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))


def test_a_turn_is_given_to_the_version_that_is_active_when_it_is_given() -> None:
    async def scenario() -> None:
        shop = Baskets()
        await shop.begin()
        engine: Any = shop.worker.engine
        flush = engine._flush

        async def slow() -> None:
            engine._flush = flush
            await flush()
            shop.active(1)  # a `rollback` is read during the commit before the turn

        engine._flush = slow
        shop.active(2)
        await shop.until(lambda: engine._flush == flush)
        await shop.worker.go_on()
        assert shop.role.acts
        await shop.gives()
        assert (turn := shop.routes.turn(0)) is not None
        assert turn.version == 2

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))


def test_no_turn_is_given_before_all_is_read_that_was_said_of_it() -> None:
    async def scenario() -> None:
        shop = Baskets()
        await shop.begin()
        shop.routes.read = False
        shop.active(2)
        await shop.worker.go_on()
        assert shop.role.acts
        shop.active(1)
        shop.routes.read = True
        await shop.worker.go_on()
        assert shop.role.acts

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))


def test_brokers_that_do_not_say_where_all_ends_do_not_end_a_worker_whose_partitions_move() -> None:
    async def scenario() -> None:
        shop = Baskets()
        await shop.begin()
        await shop.gives()
        engine, moved = shop.worker.engine, asyncio.get_running_loop().create_future()

        def unknown(places: Iterable[Place]) -> dict[Place, int]:
            engine._inbox.put_nowait((None, moved))
            raise OffsetsUnknown(f"no leader of {[*places]} answers")

        engine._turns._offsets.ends = unknown  # type: ignore[method-assign]
        shop.active(1)
        shop.turn(2, version=1)
        await shop.until(moved.done)

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))
