"""A command is sent once, its offset is known, and every failure says whether a retry makes sense."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from shared.http.limits import MAX_BODY_BYTES
from shared.kafka import producer as producer_module
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import (
    MAX_UNANSWERED_BYTES,
    CommandProducer,
    ProducerBusy,
    SendRefused,
    SendUncertain,
    producer_config,
)
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from shared.topology.topics import Topic, Topology

COMMANDS = Topic("orders.commands.v1")
TOPOLOGY = Topology("orders", (COMMANDS,), partitions=4)
NOWHERE = "127.0.0.1:1"

Test = Callable[[CommandProducer], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def broker(bootstrap: str) -> str:
    provision([TOPOLOGY], Settings(bootstrap=bootstrap))
    return bootstrap


def run(test: Test, bootstrap: str, max_unanswered: int = 10_000) -> None:
    async def main() -> None:
        producer = CommandProducer(bootstrap, [TOPOLOGY], max_unanswered)
        await test(producer)

    asyncio.run(main())


def read(bootstrap: str, partition: int, offset: int) -> Any:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(COMMANDS.name, partition, offset)])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.error() is None
    return message


def test_nothing_is_lost_repeated_or_reordered_by_configuration() -> None:
    config = producer_config("a:1", transactional_id="accounts-1")
    promised = {"acks": "all", "enable.idempotence": True, "partitioner": "murmur2_random"}
    assert config.items() >= (promised | {"transactional.id": "accounts-1"}).items()


@pytest.mark.broker
def test_a_send_returns_where_the_record_is(broker: str) -> None:
    async def test(producer: CommandProducer) -> None:
        key = "Zoë".encode()
        partition, offset = await producer.send(COMMANDS.name, key, b"value")
        assert partition == partition_of(key, 4)
        message = read(broker, partition, offset)
        assert (message.key(), message.value()) == (key, b"value")

    run(test, broker)


@pytest.mark.broker
def test_a_record_goes_to_the_given_partition(broker: str) -> None:
    async def test(producer: CommandProducer) -> None:
        elsewhere = (partition_of(b"one", 4) + 1) % 4
        partition, offset = await producer.send(COMMANDS.name, b"one", b"value", elsewhere)
        assert (partition, read(broker, partition, offset).key()) == (elsewhere, b"one")

    run(test, broker)


@pytest.mark.broker
def test_records_of_a_key_keep_the_order_they_were_sent_in(broker: str) -> None:
    async def test(producer: CommandProducer) -> None:
        sent = await asyncio.gather(*(producer.send(COMMANDS.name, b"one", b"%d" % n) for n in range(3000)))
        offsets = [offset for _, offset in sent]
        assert offsets == list(range(offsets[0], offsets[0] + 3000))
        assert read(broker, *sent[1234]).value() == b"1234"

    run(test, broker)


@pytest.mark.broker
def test_a_cancelled_wait_neither_takes_the_record_back_nor_disturbs_others(broker: str) -> None:
    async def test(producer: CommandProducer) -> None:
        abandoned = asyncio.ensure_future(producer.send(COMMANDS.name, b"one", b"abandoned"))
        await asyncio.sleep(0)
        abandoned.cancel()
        partition, offset = await producer.send(COMMANDS.name, b"one", b"next")
        assert read(broker, partition, offset - 1).value() == b"abandoned"

    run(test, broker)


@pytest.mark.broker
def test_a_record_that_is_too_large_is_refused_at_once(broker: str) -> None:
    async def test(producer: CommandProducer) -> None:
        with pytest.raises(SendRefused, match=r"MSG_SIZE_TOO_LARGE.*raise the topic.s max"):
            await producer.send(COMMANDS.name, b"one", bytes(2_000_000))

    run(test, broker)


@pytest.mark.broker
def test_a_topic_that_nobody_provisioned_is_refused(broker: str) -> None:
    async def main() -> None:
        missing = Topology("missing", (Topic("missing.commands.v1"),))
        producer = CommandProducer(broker, [missing])
        with pytest.raises(SendRefused, match=r"^missing\.commands\.v1: .*UNKNOWN_TOPIC.*run `provision`"):
            await producer.send("missing.commands.v1", b"one", b"value")

    asyncio.run(main())


def test_more_unanswered_sends_than_allowed_are_refused_as_busy() -> None:
    async def test(producer: CommandProducer) -> None:
        waiting = [asyncio.ensure_future(producer.send(COMMANDS.name, b"k", b"v")) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ProducerBusy, match="3 sends are unanswered") as busy:
            await producer.send(COMMANDS.name, b"k", b"v")
        assert busy.value.retriable
        assert not any(send.done() for send in waiting)

    run(test, NOWHERE, max_unanswered=3)


def test_more_unanswered_bytes_than_allowed_are_refused_as_busy() -> None:
    """Else large commands would fill the memory of a worker whose brokers are away."""

    async def test(producer: CommandProducer) -> None:
        value = bytes(MAX_BODY_BYTES)
        more = MAX_UNANSWERED_BYTES // len(value) + 1
        with pytest.raises(ProducerBusy) as refused:
            await asyncio.gather(*(producer.send(COMMANDS.name, b"k", value) for _ in range(more)))
        assert refused.value.retriable

    run(test, NOWHERE)


def test_without_an_acknowledgement_the_outcome_is_uncertain_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "DELIVERY_TIMEOUT_S", 1)

    async def test(producer: CommandProducer) -> None:
        with pytest.raises(SendUncertain, match="_MSG_TIMED_OUT") as uncertain:
            await producer.send(COMMANDS.name, b"k", b"v")
        assert uncertain.value.retriable

    run(test, NOWHERE)


def test_a_record_whose_place_is_not_told_is_uncertain_and_later_ones_are_answered() -> None:
    """A broker that gets a batch again, and does not remember where it is, acknowledges it without an offset."""
    found: list[tuple[int | None, int | None]] = [(1, None), (1, 7)]

    class Repeated:
        def __init__(self) -> None:
            self.reports: list[Callable[..., None]] = []

        def produce(self, *_: object, on_delivery: Callable[..., None]) -> None:
            self.reports.append(on_delivery)

        def poll(self, _: float) -> None:
            if self.reports:
                partition, offset = found.pop(0)
                told = {"partition": lambda: partition, "offset": lambda: offset, "timestamp": lambda: (0, 0)}
                self.reports.pop(0)(None, SimpleNamespace(**told))

    async def test(producer: CommandProducer) -> None:
        producer._producer = cast(Any, Repeated())
        with pytest.raises(SendUncertain, match="did not say where"):
            await producer.send(COMMANDS.name, b"k", b"v")
        assert await producer.send(COMMANDS.name, b"k", b"v") == (1, 7)

    run(test, NOWHERE)
