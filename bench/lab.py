"""Where a benchmark runs: one embedded broker, its topics, and the sides as processes of their own."""

from __future__ import annotations

import fcntl
import itertools
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench.begin import Begin
from bench.domain import DECIDER, EVENT_CODEC, Sell, Sold
from bench.topology import PARTITIONS
from shared.dev.embedded import EmbeddedKafka
from shared.dev.stages import Stage, StageFailed
from shared.dev.worker import Worker
from shared.kafka.offsets import Offsets
from shared.kafka.producer import producer_config
from shared.operations.provision import provision
from shared.runtime.checkout import CHECKOUT
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.topology.topics import Topic, Topology

ROOT = CHECKOUT / ".onefold" / "bench"
_WHEN = datetime(2025, 1, 1, tzinfo=UTC)
_AS_SERVED = ("-XX:TieredStopAtLevel=4",)  # all of Java's compilers, as brokers have that run for more than minutes
_STRIDE = 7_919  # a prime: all keys occur, in no order
_POLL_EVERY = 1_000
_ERRORS = 3

Message = Callable[[str, int, int], bytes]
"""The bytes of message `number` for a key, with an amount in cents."""


@dataclass(frozen=True, slots=True)
class Input:
    """A topic that holds `count` messages over `keys` keys."""

    topic: Topic
    count: int
    keys: int
    partitions: int


class Lab:
    """Holds `root`, emptied, for one run."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root.resolve()
        self.kafka = EmbeddedKafka(self.root / "kafka", self.root / "logs", options=_AS_SERVED)
        self._sides: list[Worker] = []
        self._inputs: dict[str, Input] = {}
        self._runs = itertools.count(1)

    def __enter__(self) -> Self:
        self._held = _only_one(self.root)
        self._held.__enter__()
        try:
            self.kafka.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for side in self._sides:
            side.kill()
        self.kafka.stop()
        self._held.__exit__(None, None, None)

    @property
    def settings(self) -> Settings:
        return Settings(bootstrap=self.kafka.bootstrap, data_dir=self.root / "stores", log_format="json")

    def provision(self, topologies: Iterable[Topology]) -> None:
        provision(topologies, self.settings)

    def service(self, side: str) -> str:
        """A name that no other run has, for a side's group and topics."""
        return f"{side.replace('_', '-')}-{next(self._runs)}"

    def spawn(self, name: str, command: Sequence[str], instance: int = 1) -> Worker:
        """A side's process; its settings are in ONEFOLD_ variables."""
        side = Worker(name, str(instance), self.settings, self.root / "logs" / f"{name}.log", lambda _: command)
        self._sides.append(side)
        side.spawn()
        return side

    def events(self, begin: Begin, count: int, keys: int, partitions: int = PARTITIONS) -> Input:
        """A topic of `Sold` events."""
        return self._input("events", count, keys, _event, begin, partitions)

    def commands(self, begin: Begin, count: int, keys: int) -> Input:
        """A topic of `Sell` commands."""
        return self._input("commands", count, keys, _command, begin)

    def delete(self, given: Input) -> None:
        """The topic that `events` or `commands` has written. Brokers delete its files a minute later."""
        admin = AdminClient({"bootstrap.servers": self.settings.bootstrap})
        admin.delete_topics([given.topic.name])[given.topic.name].result()
        del self._inputs[given.topic.name]

    def _input(
        self, kind: str, count: int, keys: int, message: Message, begin: Begin, partitions: int = PARTITIONS
    ) -> Input:
        """Written at the first request for it."""
        topic = input_topic(kind, count, keys, partitions)
        if topic.name not in self._inputs:
            with begin("input") as now:
                self._inputs[topic.name] = self._fill(Input(topic, count, keys, partitions), message, now)
                now.done = f"{topic.name}: {count:,} messages over {keys:,} keys"
        return self._inputs[topic.name]

    def _fill(self, given: Input, message: Message, now: Stage) -> Input:
        topic, count, keys = given.topic, given.count, given.keys
        self.provision([Topology(f"bench-{given.partitions}", (topic,), partitions=given.partitions)])
        config = producer_config(self.settings.bootstrap, linger_ms=50, batch_size=2**20)
        producer = Producer(config | {"log_level": _ERRORS})
        chance = random.Random(count)
        for number in range(count):
            key = f"customer-{number * _STRIDE % keys}"
            value = message(key, number, chance.randrange(1, 10_000))
            while True:
                try:
                    producer.produce(topic.name, value, key.encode())
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % _POLL_EVERY == 0:
                producer.poll(0)
                now.progress(number, count, "written")
        producer.flush()
        places = [Place(topic.name, partition) for partition in range(given.partitions)]
        found = sum(Offsets(self.settings.bootstrap).ends(places).values())
        if found != count:
            raise StageFailed(f"{topic.name} holds {found} of {count}", "see the broker's log", self.root / "logs")
        return given


def _event(key: str, number: int, amount_cents: int) -> bytes:
    return EVENT_CODEC.write(
        Sold(amount_cents=amount_cents),
        event_id=_id("event", number),
        aggregate_id=key,
        sequence=number + 1,
        occurred_at=_WHEN,
        correlation_id=_id("story", number),
        causation_id=_id("cause", number),
    )


def _command(key: str, number: int, amount_cents: int) -> bytes:
    codec = DECIDER.command_codec
    command = Sell(amount_cents=amount_cents)
    wrapped = codec.wrap(command, command_id=_id("order", number), aggregate_id=key, issued_at=_WHEN)
    return codec.encode(wrapped)


def input_topic(kind: str, count: int, keys: int, partitions: int = PARTITIONS) -> Topic:
    """kind: of its messages, events or commands."""
    return Topic(f"bench-{keys}-{count}-{partitions}.{kind}.v1")


def _id(kind: str, number: int) -> str:
    """As long as a UUID, and made in a tenth of the time."""
    return f"{kind}-0000-5000-8000-{number:015d}"


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """Holds `root`, empty, for one run."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with root.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StageFailed("a benchmark of this checkout runs already", "let it end, then run again") from None
        if root.exists():
            shutil.rmtree(root)
        (root / "stores").mkdir(parents=True)
        yield
