"""One real broker for all tests of this folder, and topics of its own for each that writes."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from confluent_kafka import Producer

from shared.dev.embedded import EmbeddedKafka
from shared.kafka.producer import producer_config
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from shared.topology.topics import Topic, Topology

_NUMBERS = count(1)


@pytest.fixture(scope="package")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("kafka")
    with EmbeddedKafka(root / "data", root / "logs") as kafka:
        yield kafka.bootstrap


@pytest.fixture
def topic(bootstrap: str) -> str:
    topic = Topic(f"records{next(_NUMBERS)}.events.v1")
    provision([Topology("records", (topic,), partitions=2)], Settings(bootstrap=bootstrap))
    return topic.name


@pytest.fixture
def put(bootstrap: str, topic: str) -> Callable[..., None]:
    """Writes values, or None, under their own bytes in one transaction, whose marker takes the next offset."""
    producer = Producer(producer_config(bootstrap, transactional_id=topic))
    producer.init_transactions(30)

    def put(*values: bytes | None, partition: int = 0, abort: bool = False) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, value or b"gone", partition)
        producer.flush(30)
        producer.abort_transaction(30) if abort else producer.commit_transaction(30)

    return put
