"""The log as its readers see it: committed records only, during the faults and after them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
)

from shared.kafka.brokers import Brokers
from shared.kafka.offsets import place_of
from shared.runtime.positions import Place
from tests.waiting import Deadline

DEADLINE_S = 60.0
LEADERS_S = 10.0


class Read(NamedTuple):
    """timestamp: when it was appended, by its broker, in ms since the epoch."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 0


Records = dict[Place, list[Read]]
Arrived = tuple[Place, Read]


def read_all(bootstrap: str, starts: Mapping[Place, int]) -> Records:
    """Every committed record from `starts` on. Call it only while no transaction is open."""
    found: Records = {partition: [] for partition in starts}
    missing = set(starts)
    deadline = Deadline(DEADLINE_S)
    with closing(_reader(bootstrap, starts)) as consumer:
        while missing:
            for message in consumer.consume(5_000, 0.2):
                place = _place(message)
                error = message.error()
                if error is None:
                    found[place].append(_read(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    missing.discard(place)
            deadline.check(f"not read to the end within {DEADLINE_S:.0f} s: {sorted(missing)}")
    return found


def read_whole(bootstrap: str, topic: str) -> Records:
    """Every committed record of the topic, as `read_all`."""
    partitions = range(Brokers(bootstrap).partitions(topic))
    return read_all(bootstrap, {Place(topic, partition): OFFSET_BEGINNING for partition in partitions})


def with_open_transactions(bootstrap: str, partitions: Iterable[Place]) -> list[Place]:
    """The partitions whose last stable offset is not their end. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = {TopicPartition(*partition): OffsetSpec.latest() for partition in partitions}  # type: ignore[no-untyped-call]

    def ends(isolation: IsolationLevel) -> dict[Place, int]:
        futures = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=10.0)
        return {place_of(tp): future.result().offset for tp, future in futures.items()}

    stable, last = ends(IsolationLevel.READ_COMMITTED), ends(IsolationLevel.READ_UNCOMMITTED)
    return [place for place in last if stable[place] != last[place]]


class Follower(threading.Thread):
    """Reads along while things break; at the end, the log must hold exactly the records it has seen.

    records: by partition. arrived: the same in the order in which they were read.
    """

    def __init__(self, bootstrap: str, starts: Mapping[Place, int]) -> None:
        super().__init__(name="follower", daemon=True)
        self.records: Records = {partition: [] for partition in starts}
        self.arrived: list[Arrived] = []
        self._consumer = _reader(bootstrap, starts)
        self._ending = threading.Event()

    def run(self) -> None:
        with closing(self._consumer):
            while not self._ending.is_set():
                for message in self._consumer.consume(5_000, 0.1):
                    if message.error() is None:
                        self._note(_place(message), _read(message))

    def count(self, topics: Collection[str]) -> int:
        return sum(len(records) for (topic, _), records in self.records.items() if topic in topics)

    def has_seen(self, records: Records) -> bool:
        """Whether it has read as far as these records."""
        return all(
            self.records[place] and self.records[place][-1].offset >= reads[-1].offset
            for place, reads in records.items()
            if reads
        )

    def end(self) -> None:
        self._ending.set()
        self.join()

    def _note(self, place: Place, read: Read) -> None:
        self.records[place].append(read)
        self.arrived.append((place, read))


@contextmanager
def compacting(bootstrap: str, topic: str) -> Iterator[None]:
    """Inside the block the only broker compacts the topic all the time."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    eager = {"segment.ms": "500", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1000"}
    changes = [
        (ConfigResource.Type.TOPIC, topic, eager),
        (ConfigResource.Type.BROKER, "1", {"log.cleaner.backoff.ms": "200"}),
    ]

    def change(operation: AlterConfigOpType) -> None:
        for kind, name, config in changes:
            entries = [ConfigEntry(key, value, incremental_operation=operation) for key, value in config.items()]
            (done,) = admin.incremental_alter_configs(
                [ConfigResource(kind, name, incremental_configs=entries)]
            ).values()
            done.result()

    change(AlterConfigOpType.SET)
    yield
    change(AlterConfigOpType.DELETE)


def _reader(bootstrap: str, starts: Mapping[Place, int]) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
    )
    with suppress(KafkaException):  # librdkafka asks for leaders once a second, but for these at once
        for topic in {topic for topic, _ in starts}:
            consumer.list_topics(topic, LEADERS_S)
    consumer.assign([TopicPartition(*partition, offset) for partition, offset in starts.items()])
    return consumer


def _place(message: Message) -> Place:
    return Place(str(message.topic()), message.partition() or 0)


def _read(message: Message) -> Read:
    key, value = message.key(), message.value()
    assert not isinstance(key, str)
    assert not isinstance(value, str)
    return Read(message.offset() or 0, key, value, message.timestamp()[1])
