"""One key, one partition, whichever client sends it."""

import asyncio
from collections.abc import Iterable

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import DefaultPartitioner
from confluent_kafka import Message, Producer
from hypothesis import given
from hypothesis import strategies as st

from shared.kafka.murmur2 import murmur2, partition_of
from shared.kafka.producer import CommandProducer, producer_config
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from shared.topology.topics import Topic, Topology

KEYS = st.binary(max_size=80) | st.text(max_size=40).map(str.encode)
PARTITIONS = 7


@pytest.mark.parametrize(("partitions", "partition"), [(3, 1), (4, 2), (8, 6)])
def test_the_golden_vector(partitions: int, partition: int) -> None:
    assert partition_of(b"order-1", partitions) == partition


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_vectors_of_kafkas_own_test_suite(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


@given(KEYS, st.integers(1, 10_000))
def test_librdkafka_and_aiokafka_agree_with_it(key: bytes, partitions: int) -> None:
    partition = partition_of(key, partitions)
    assert confluent_kafka.murmur2(key, partitions) == partition
    assert DefaultPartitioner()(key, range(partitions), range(partitions)) == partition


@pytest.mark.broker
def test_every_producer_of_the_system_sends_a_key_to_the_same_partition(bootstrap: str) -> None:
    topology = Topology("routing", (Topic("routing.commands.v1"),), partitions=PARTITIONS)
    provision([topology], Settings(bootstrap=bootstrap))
    keys = [b"", b"order-1", "Grüße ☕".encode(), b"\x00\xff" * 20, *(b"customer-%d" % n for n in range(200))]
    expected = [partition_of(key, PARTITIONS) for key in keys]
    assert _by_librdkafka(bootstrap, keys) == expected
    assert asyncio.run(_by_aiokafka(bootstrap, keys)) == expected
    assert asyncio.run(_by_command_producer(bootstrap, topology, keys)) == expected


def _by_librdkafka(bootstrap: str, keys: Iterable[bytes]) -> list[int | None]:
    """librdkafka chooses the partition, as it does when the engine writes keys of other services."""
    partitions: dict[bytes | None, int | None] = {}

    def note(error: object, message: Message) -> None:
        assert error is None
        partitions[message.key() or b""] = message.partition()

    producer = Producer(producer_config(bootstrap))
    for key in keys:
        producer.produce("routing.commands.v1", b"", key, on_delivery=note)
    assert producer.flush(30) == 0
    return [partitions[key] for key in keys]


async def _by_aiokafka(bootstrap: str, keys: Iterable[bytes]) -> list[int]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        sent = [await producer.send("routing.commands.v1", b"", key) for key in keys]
        return [(await each).partition for each in sent]


async def _by_command_producer(bootstrap: str, topology: Topology, keys: Iterable[bytes]) -> list[int]:
    producer = CommandProducer(bootstrap, [topology])
    sent = await asyncio.gather(*(producer.send("routing.commands.v1", key, b"") for key in keys))
    return [partition for partition, _ in sent]
