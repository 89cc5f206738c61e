"""Public events as another team reads them: with a Kafka client of its own and the library of CloudEvents."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary_event
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from shared.kafka.brokers import Brokers
from tests.waiting import Deadline

DEADLINE_S = 60.0


def read_events(bootstrap: str, topic: str) -> Sequence[BaseCloudEvent]:
    """All that is committed there, each partition in its order."""
    places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(Brokers(bootstrap).partitions(topic))]
    options = {"bootstrap.servers": bootstrap, "group.id": "another-team", "enable.partition.eof": True}
    found: list[BaseCloudEvent] = []
    missing, deadline = len(places), Deadline(DEADLINE_S)
    with closing(Consumer(options)) as consumer:
        consumer.assign(places)
        while missing:
            for message in consumer.consume(500, 0.2):
                if (error := message.error()) is None:
                    found.append(event_of(message.headers(), message.key(), message.value()))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    missing -= 1
            deadline.check(f"{topic} is not read to its end")
    return found


def event_of(headers: Any, key: Any, value: Any) -> BaseCloudEvent:
    return from_binary_event(KafkaMessage(dict(headers), key, value))
