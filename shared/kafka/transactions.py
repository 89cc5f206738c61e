"""One Kafka transaction per batch: records and the source offsets they come from, or nothing of either."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from msgspec import Struct

from shared import failpoints
from shared.clock import elapsed_s
from shared.kafka.producer import producer_config
from shared.positions import Partition

log = structlog.get_logger(__name__)

TRANSACTION_TIMEOUT_MS = 15_000  # a successor waits at most this long for a dead worker's open transaction
CALL_TIMEOUT_S = 20.0
COMMIT_ATTEMPTS = 3

_LOST_MEMBERSHIP = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
    }
)
_FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_HOPELESS: Mapping[int, str] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "run `provision`: a topic it writes to does not exist",
    KafkaError._UNKNOWN_TOPIC: "run `provision`: a topic it writes to does not exist",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant this service's principal WRITE on the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant this service's principal READ on its group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant this service's principal its transactional id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant this service's principal IDEMPOTENT_WRITE",
    KafkaError.MSG_SIZE_TOO_LARGE: "make the event or the row smaller, or raise the topic's max.message.bytes",
    KafkaError.RECORD_LIST_TOO_LARGE: "make the event or the row smaller, or raise max.message.bytes",
    KafkaError._FENCED: "name them differently: two workers share one ONEFOLD_INSTANCE",
    KafkaError.INVALID_PRODUCER_EPOCH: "name them differently: two workers share one ONEFOLD_INSTANCE",
}

BY_KEY = -1  # librdkafka's "no partition given": murmur2 of the key chooses


class Record(Struct, frozen=True, gc=False):
    """One record to write."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int = BY_KEY


class TransactionAborted(Exception):
    """Nothing of the batch happened, or only the broker knows: start again from the committed offsets.

    lost_membership: the group has moved on, so another worker may own the partitions.
    """

    def __init__(self, reason: str, lost_membership: bool = False) -> None:
        super().__init__(reason)
        self.lost_membership = lost_membership


class TransactionRefused(Exception):
    """Trying again can't help; nothing of the batch happened.

    Operator action: do what the message says, then start the worker again.
    """


class TransactionalProducer:
    """Writes batches exactly once, each with `send` and `commit`. Blocking and not thread-safe: use one thread."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._config = producer_config(
            bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            queue_buffering_max_messages=1_000_000,
            queue_buffering_max_kbytes=256 * 1024,
            linger_ms=1,
            # A commit that waits for the group's coordinator is woken when a connection opens or closes, else never:
            # not even if that broker left the cluster (librdkafka issues 5511, 5456). So idle connections are closed.
            connections_max_idle_ms=3_000,
            enable_sparse_connections=False,
        )
        self._producer: Producer | None = None
        self._began = 0.0
        self._last = _Last()
        self._suspicious = False

    def send(self, records: Sequence[Record]) -> None:
        """Begin a transaction with `records`. Raises as `commit` does."""
        self._began, self._last = elapsed_s(), _Last()
        with self._or_nothing():
            producer = self._opened()
            producer.begin_transaction()
            failpoints.reached("before_produce")
            _produce(producer, records, self._last, report_all=self._suspicious)
            failpoints.reached("after_produce")

    def commit(self, offsets: Mapping[Partition, int], member: bytes) -> Mapping[Partition, int]:
        """Commit what was sent, and with it `offsets` for the group member.

        offsets: the next offset to read, by source partition. member: from `group_metadata`.
        Returns the offset of the last record written to each partition.
        Raises TransactionAborted, after which the batch may be tried again, or TransactionRefused.
        """
        with self._or_nothing():
            producer = self._opened()
            unsent = producer.flush(CALL_TIMEOUT_S)
            if self._last.error is not None:
                raise KafkaException(self._last.error)
            if unsent:
                raise TransactionAborted(f"{unsent} records unsent after {CALL_TIMEOUT_S:.0f} s")
            # Only now: a record that is still queued here could land behind the generation check.
            failpoints.reached("before_offsets")
            positions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
            _retried(lambda: producer.send_offsets_to_transaction(positions, member, CALL_TIMEOUT_S))
            failpoints.reached("after_offsets")
            _retried(lambda: producer.commit_transaction(CALL_TIMEOUT_S))
        self._suspicious = False
        return self._last.offsets

    @contextmanager
    def _or_nothing(self) -> Iterator[None]:
        """Whatever fails inside ends the transaction."""
        try:
            yield
        except KafkaException as failure:
            self._suspicious = True
            expired = elapsed_s() - self._began > TRANSACTION_TIMEOUT_MS / 1000
            self._abort()
            raise _explained(failure.args[0], expired) from failure
        except BaseException:
            self._abort()
            raise

    def _opened(self) -> Producer:
        if self._producer is None:
            producer = Producer(self._config)
            _retried(lambda: producer.init_transactions(CALL_TIMEOUT_S))
            self._producer = producer
        return self._producer

    def _abort(self) -> None:
        """End the transaction; when even that fails, a new producer settles it by taking over the id."""
        if self._producer is None:
            return
        try:
            self._producer.abort_transaction(CALL_TIMEOUT_S)
        except KafkaException as failure:
            log.warning("abort failed, a new producer settles the transaction", reason=str(failure))
            self._producer = None


class _Last:
    """Where the last record of each partition landed, and the first failure."""

    def __init__(self) -> None:
        self.offsets: dict[Partition, int] = {}
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.error = self.error or error
        else:
            self.offsets[message.topic(), message.partition()] = message.offset()  # type: ignore[index,assignment]


def _produce(producer: Producer, records: Sequence[Record], last: _Last, report_all: bool) -> None:
    """Hand all records to librdkafka, as its queue has room; one that fails makes the transaction's next call fail.

    A delivery report for every record would halve the speed, and order within a partition is kept, so only the
    last record of each partition asks for one; after a failure all do, because that call's own error has no cause.
    """
    latest = {(record.topic, record.partition): index for index, record in enumerate(records)}
    reported = range(len(records)) if report_all else set(latest.values())
    produce = producer.produce
    for index, record in enumerate(records):
        give_up = 0.0
        while True:
            try:
                if index in reported:
                    produce(record.topic, record.value, record.key, record.partition, on_delivery=last)
                else:
                    produce(record.topic, record.value, record.key, record.partition)
                break
            except BufferError:  # the queue is full
                give_up = give_up or time.monotonic() + CALL_TIMEOUT_S
                if time.monotonic() > give_up:
                    raise TransactionAborted(f"librdkafka's queue stays full for {CALL_TIMEOUT_S:.0f} s") from None
                producer.poll(0.01)


def producer_id(group: str, instance: str) -> str:
    """The transactional id of a worker: as groups have no underscore, those of two never meet, nor begin alike."""
    return f"{group}_{instance}"


def group_metadata(group: str, generation: int, member_id: str, instance_id: str | None = None) -> bytes:
    """What librdkafka's consumer_group_metadata() gives for this member of the group, in its own bytes.

    The broker refuses a transaction of any generation but the current one: that is the fence of promise 1.
    Taken when partitions are assigned, so a batch of an earlier assignment can't ride on a later generation.
    Raises ValueError for what a consumer outside any group has: the broker fences nothing by that.
    """
    if generation < 0 or not member_id:
        raise ValueError(f"{member_id!r} in generation {generation} is no member of a group")
    head = b"CGMDv2:" + struct.pack("<i", generation) + group.encode() + b"\0" + member_id.encode() + b"\0"
    return head + (b"\x01" if instance_id is None else b"\x00" + instance_id.encode() + b"\0")


def _retried(call: Callable[[], object]) -> None:
    """librdkafka resumes a timed-out transaction call when it is made again."""
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            call()
            return
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if not error.retriable() or error.txn_requires_abort() or attempt == COMMIT_ATTEMPTS:
                raise
            log.info("transaction call is tried again", reason=error.str())


def _explained(error: KafkaError, expired: bool) -> Exception:
    """expired: so old a transaction is aborted by its coordinator, whose word for that is the one for a twin."""
    code = error.code()
    if code in _LOST_MEMBERSHIP:
        return TransactionAborted(error.str(), lost_membership=True)
    if code in _FENCED and expired:
        return TransactionAborted(f"open for longer than {TRANSACTION_TIMEOUT_MS / 1000:.0f} s ({error.name()})")
    if code in _HOPELESS:
        return TransactionRefused(f"{error.str()} ({error.name()}). Fix: {_HOPELESS[code]}")
    if error.fatal():
        return TransactionRefused(f"{error.str()} ({error.name()}). Fix: start the worker again")
    return TransactionAborted(f"{error.str()} ({error.name()})")
