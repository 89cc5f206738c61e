"""The mirror between two clusters that authenticate their clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from shared.dev.issuer import DevIssuer
from shared.operations.mirror import Mirror, mirror_properties, signed_in
from shared.runtime.settings import Mechanism
from tests.secure.conftest import Secured, SecuredKafka, allow_everything, allowed, listeners_of
from tests.waiting import eventually

TOPIC = "accounts.dead.v1"

# that it signs in by every mechanism is told from its properties in every run: tests/unit/test_mirror
pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture
def second(secured: Secured, tmp_path: Path) -> Iterator[SecuredKafka]:
    root = secured.ca.parent
    issuer = DevIssuer(root / "issuer")
    with SecuredKafka(tmp_path / "second", listeners_of(root / "broker.pem", issuer), allowed(issuer)) as kafka:
        yield kafka


@pytest.mark.parametrize(
    ("mechanism", "listener"), [("SCRAM-SHA-512", "SECURE"), ("PLAIN", "PLAIN"), ("OAUTHBEARER", "TOKENS")]
)
def test_a_mirror_signs_in_to_both_clusters(
    mechanism: Mechanism,
    listener: str,
    secured: Secured,
    second: SecuredKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for bootstrap in (secured.operators, second.bootstrap):
        allow_everything("mirror", bootstrap)
    producer = Producer({"bootstrap.servers": secured.operators})
    producer.produce(TOPIC, b"mirrored", b"a-1", 0)
    assert producer.flush(30) == 0
    principal = secured.principal("mirror")._replace(
        mechanism=mechanism, token_url=secured.tokens if mechanism == "OAUTHBEARER" else None
    )
    monkeypatch.setattr("shared.kafka.access._principal", lambda: principal)
    properties = mirror_properties([TOPIC], secured.addresses[mechanism], second.address(listener), 1)
    with Mirror(signed_in(properties), tmp_path / "mirror"):
        eventually(lambda: values_of(second.bootstrap), lambda found: b"mirrored" in found, 180)


def values_of(bootstrap: str) -> list[bytes | None]:
    """What the partition holds so far; nothing while the topic is not there."""
    reading = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
    with closing(Consumer(reading)) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        return [message.value() for message in consumer.consume(100, timeout=1) if message.error() is None]
