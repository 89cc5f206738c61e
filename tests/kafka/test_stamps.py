"""Brokers' stamps are read at any number of offsets of a partition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from shared.kafka.stamps import stamps
from shared.runtime.positions import Place

TOPIC = "shop.events.v1"


@pytest.fixture
def written() -> Iterator[str]:
    """The address of librdkafka's mock broker, with a record of each second from 1 to 4 in two partitions."""
    with Producer({"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0}) as producer:
        for second in range(1, 5):
            for partition in (0, 1):
                producer.produce(TOPIC, b"one", partition=partition, timestamp=1000 * second)
            assert producer.flush(30) == 0  # so that each is a batch of its own
        (broker,) = producer.list_topics(timeout=30).brokers.values()
        yield f"{broker.host}:{broker.port}"


def test_every_offset_of_a_partition_is_stamped(written: str) -> None:
    zero, one = Place(TOPIC, 0), Place(TOPIC, 1)
    asked = [(zero, 0), (zero, 2), (zero, 3), (one, 1), (one, 3)]
    assert stamps(written, asked) == {each: each[1] + 1.0 for each in asked}


def test_nothing_is_behind_the_end(written: str) -> None:
    zero, one = Place(TOPIC, 0), Place(TOPIC, 1)
    assert stamps(written, [(zero, 3), (zero, 4), (one, 4)]) == {(zero, 3): 4.0}
