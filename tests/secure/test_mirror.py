"""The mirror between two clusters that authenticate their clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from shared.operations.mirror import Mirror, mirror_properties, signed_in
from tests.secure.conftest import Listener, Secured, SecuredKafka, allow_everything
from tests.waiting import eventually

TOPIC = "accounts.dead.v1"

# that it signs in by every mechanism is told from its properties in every run: tests/unit/test_mirror
pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture
def second(secured: Secured, tmp_path: Path) -> Iterator[SecuredKafka]:
    certificate = secured.ca.with_name("broker.pem")
    with SecuredKafka(tmp_path / "second", {"SECURE": Listener(certificate)}) as kafka:
        yield kafka


def test_a_mirror_signs_in_to_both_clusters(
    secured: Secured, second: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bootstrap in (secured.operators, second.bootstrap):
        allow_everything("mirror", bootstrap)
    producer = Producer({"bootstrap.servers": secured.operators})
    producer.produce(TOPIC, b"mirrored", b"a-1", 0)
    assert producer.flush(30) == 0
    monkeypatch.setattr("shared.kafka.access._principal", lambda: secured.principal("mirror"))
    properties = mirror_properties([TOPIC], secured.bootstrap, second.address("SECURE"), 1)
    with Mirror(signed_in(properties), tmp_path / "mirror"):
        eventually(lambda: values_of(second.bootstrap), lambda found: b"mirrored" in found, 180)


def values_of(bootstrap: str) -> list[bytes | None]:
    """What the partition holds so far; nothing while the topic is not there."""
    reading = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
    with closing(Consumer(reading)) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        return [message.value() for message in consumer.consume(100, timeout=1) if message.error() is None]
