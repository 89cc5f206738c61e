"""An engine over brokers in memory, which has just been assigned some partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from shared.engine.engine import Engine
from shared.engine.membership import Assignment
from shared.engine.processors import Processor
from shared.kafka.transactions import Record, RecordTooLarge
from shared.runtime.positions import Place
from shared.runtime.routes import Routes
from shared.topology.topics import Topology
from tests.faults.simulated import Broker, FakeOffsets, FakeProducer, FakeReader, FakeStore, membership


class Assigned:
    """others: topics of other services that it reads."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        *partitions: int,
        topology: Topology,
        processors: Sequence[Processor],
        others: Sequence[str] = (),
        routes: Routes | None = None,
    ) -> None:
        topics = [*(topic.name for topic in topology.all_topics()), *others]
        places = frozenset(Place(topic, number) for topic in topics for number in partitions)
        broker.group = topology.group
        broker.members.add(name)
        self.broker, self.name = broker, name
        self.producer = FakeProducer(broker, name)
        self.engine = Engine(
            topology,
            processors,
            stores=cast(Any, {table.name: FakeStore(table.name) for table in topology.all_tables()}),
            reader=cast(Any, FakeReader(broker, broker.chance)),
            new_consumer=cast(Any, None),
            producer=cast(Any, self.producer),
            offsets=cast(Any, FakeOffsets(broker)),
            alive=lambda: None,
            sign=broker.sign,
            lease_s=10.0,
            routes=routes,
        )
        self.engine.assignment = Assignment(places, frozenset(), membership(broker, name), 0, name)

    async def start(self) -> None:
        await self.engine._begin()

    async def begin(self) -> None:
        """Without a record."""
        await self.start()
        await self.engine.step()
        await self.engine._settle()

    async def work(self) -> None:
        await self.start()
        await self.go_on()

    async def go_on(self) -> None:
        for _ in range(30):
            await self.engine.step()
            await self.engine._settle()

    def refuse(self, is_too_large: Callable[[Record], bool]) -> None:
        """Brokers take no transaction with such a record."""
        send, commit = self.producer.send, self.producer.commit
        large: list[str] = []

        def limited(records: Sequence[Record]) -> None:
            large[:] = [each.topic for each in records if is_too_large(each)]
            send(records)

        def refused(offsets: Mapping[Place, int], member: bytes) -> Mapping[Place, int]:
            if large:
                self.broker.end(self.name, "aborted")
                raise RecordTooLarge(f"{large[0]}: too large", large[0])
            return commit(offsets, member)

        self.producer.send, self.producer.commit = limited, refused  # type: ignore[method-assign]
