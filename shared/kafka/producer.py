"""The client settings every producer shares, and the producer that HTTP handlers send commands with.

SendError
├── ProducerBusy      too many sends are unanswered: nothing was written, try again in a moment
├── SendUncertain     no full acknowledgement came, so the record may be written or not: send the same command id again
├── SendRefused       the record can never be written: nothing was written, and trying again won't help
└── ProducerFailed    this producer will never send again, and the record may be written or not: send by a new one
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from shared.domain.errors import OnefoldError
from shared.kafka.access import client_config
from shared.kafka.murmur2 import partition_of
from shared.runtime.clock import brokers_clock, elapsed_s
from shared.topology.topics import Topology

MAX_UNANSWERED = 10_000
MAX_UNANSWERED_BYTES = 16 << 20  # while brokers are away; a worker holds each about three times
MAX_RECORD_BYTES = 100_000_000  # as much as a broker reads; below that, the topic's own limit counts
DELIVERY_TIMEOUT_S = 30
MISSING_TOPIC_TIMEOUT_S = 5
_POLL_INTERVAL_S = 0.001

FIXES: Mapping[int, str] = {  # what to do about a record that can't be written, by the code of its error
    KafkaError.UNKNOWN_TOPIC_OR_PART: "run `provision`, or correct the name of the topic",
    KafkaError._UNKNOWN_TOPIC: "run `provision`, or correct the name of the topic",
    KafkaError._UNKNOWN_PARTITION: "the topic has fewer partitions than this service; run `topics`",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant this service's principal WRITE on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant this service's principal IDEMPOTENT_WRITE",
    KafkaError.MSG_SIZE_TOO_LARGE: "make the command, event or row smaller, or raise the topic's max.message.bytes",
    KafkaError.INVALID_TIMESTAMP: "set this machine's clock, which is far from the brokers'",
    KafkaError.RECORD_LIST_TOO_LARGE: "make the command, event or row smaller, or raise the topic's max.message.bytes",
}
REFUSALS = frozenset(
    {
        *FIXES,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
    }
)


class SendError(OnefoldError):
    """A record was not acknowledged."""

    retriable: ClassVar[bool]


class ProducerBusy(SendError):
    """Too many sends are unanswered; nothing was written."""

    retriable = True


class SendUncertain(SendError):
    """No acknowledgement came, or none that says where: whether the record was written is unknown."""

    retriable = True


class SendRefused(SendError):
    """The record can never be written; nothing was written."""

    retriable = False


class ProducerFailed(SendError):
    """The producer can't go on without risking order or repeats; whether the record was written is unknown."""

    retriable = True  # by a new producer


def producer_config(bootstrap: str, **extra: Any) -> dict[str, Any]:
    """librdkafka settings that neither lose, repeat nor reorder, and that hash keys as Java does.

    extra: further settings, with underscores for dots (`transactional_id="accounts_1"`).
    """
    return {
        **client_config(bootstrap),
        "acks": "all",
        "enable.idempotence": True,
        # librdkafka's own default is CRC32, which gives other partitions than Java, aiokafka and Spark
        "partitioner": "murmur2_random",
        "message.max.bytes": MAX_RECORD_BYTES,
        "logger": logging.getLogger("librdkafka"),
    } | {name.replace("_", "."): value for name, value in extra.items()}


def learn_time(delivered: Message, sent: float) -> None:
    """What time it is by the brokers, from a record that was sent at `sent` (`elapsed_s`) and delivered just now."""
    kind, stamped_ms = delivered.timestamp()
    if kind == TIMESTAMP_LOG_APPEND_TIME:
        brokers_clock.learn(stamped_ms / 1000, sent)


class CommandProducer:
    """Sends single records from one event loop, and answers when all in-sync replicas have them.

    Never closed: everyone who awaits a send gets an answer, and nobody else was promised one.

    Delivery reports are polled on the loop itself, and only while a send is unanswered: a poll thread must win
    the interpreter lock once per record, which under a busy loop took 12 ms where this takes 9.
    confluent_kafka.aio.AIOProducer refuses headers and holds back a single record for 90 ms or more.
    """

    def __init__(
        self,
        bootstrap: str,
        topologies: Iterable[Topology],
        max_unanswered: int = MAX_UNANSWERED,
        on_failed: Callable[[CommandProducer, ProducerFailed], None] = lambda *_: None,
    ) -> None:
        """on_failed: called with it for each send that fails because it did."""
        self._on_failed = on_failed
        self._partitions = {
            topic.name: topology.partitions for topology in topologies for topic in topology.all_topics()
        }
        self._producer = Producer(
            producer_config(
                bootstrap,
                linger_ms=1,
                queue_buffering_max_kbytes=MAX_UNANSWERED_BYTES >> 10,
                delivery_timeout_ms=DELIVERY_TIMEOUT_S * 1000,
                topic_metadata_propagation_max_ms=MISSING_TOPIC_TIMEOUT_S * 1000,
            )
        )
        self._max_unanswered = max_unanswered
        self._unanswered: set[asyncio.Future[tuple[int, int]]] = set()
        self._next_poll: asyncio.TimerHandle | None = None

    def send(
        self, topic: str, key: bytes, value: bytes, partition: int | None = None
    ) -> asyncio.Future[tuple[int, int]]:
        """(partition, offset) of the record, once all in-sync replicas have it. Raises SendError, then or at once.

        It is on its way before anyone waits. partition: by default the one that murmur2 gives for the key. Cancelling
        the wait does not take the record back.
        """
        if len(self._unanswered) >= self._max_unanswered:
            raise ProducerBusy(f"{len(self._unanswered)} sends are unanswered")
        answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._produce(topic, key, value, partition, answer)
        self._unanswered.add(answer)
        if self._next_poll is None:
            self._poll()
        return answer

    def _produce(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        partition: int | None,
        answer: asyncio.Future[tuple[int, int]],
    ) -> None:
        if partition is None:
            partition = partition_of(key, self._partitions[topic])
        report = partial(self._delivered, answer, elapsed_s())
        try:
            self._producer.produce(topic, value, key, partition, on_delivery=report)
        except BufferError as error:
            raise ProducerBusy(f"{MAX_UNANSWERED_BYTES:,} bytes of sends are unanswered") from error
        except KafkaException as error:
            failure = _typed(error.args[0], topic)
            if isinstance(failure, ProducerFailed):
                self._on_failed(self, failure)
            raise failure from error

    def _poll(self) -> None:
        self._producer.poll(0)
        loop = asyncio.get_running_loop()
        self._next_poll = loop.call_later(_POLL_INTERVAL_S, self._poll) if self._unanswered else None

    def _delivered(
        self, answer: asyncio.Future[tuple[int, int]], sent: float, error: KafkaError | None, message: Message
    ) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None:
            self._settle(answer, _typed(error, message.topic()))
        elif partition is None or offset is None:  # sent twice, as while leaders move, and known to the broker already
            self._settle(answer, SendUncertain("it is written, but the broker did not say where"))
        else:
            learn_time(message, sent)
            self._settle(answer, (partition, offset))

    def _settle(self, answer: asyncio.Future[tuple[int, int]], result: tuple[int, int] | SendError) -> None:
        self._unanswered.discard(answer)
        if isinstance(result, ProducerFailed):
            self._on_failed(self, result)
        if answer.done():
            return
        if isinstance(result, SendError):
            answer.set_exception(result)
        else:
            answer.set_result(result)


def _typed(error: KafkaError, topic: str | None) -> SendError:
    text = f"{error.str()} ({error.name()})"
    if error.fatal() or error.code() == KafkaError._FATAL:
        return ProducerFailed(text)
    if error.code() in REFUSALS:
        fix = FIXES.get(error.code(), "see the broker's log")
        return SendRefused(f"{topic}: {text}; fix: {fix}")
    return SendUncertain(text)
