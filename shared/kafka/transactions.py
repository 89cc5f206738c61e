"""One Kafka transaction per batch: its records and its source offsets are committed together or not at all."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from msgspec import Struct

from shared.kafka.access import ANSWER_S
from shared.kafka.producer import FIXES, MISSING_TOPIC_TIMEOUT_S, learn_time, producer_config
from shared.runtime import failpoints
from shared.runtime.clock import elapsed_s
from shared.runtime.positions import Place

log = structlog.get_logger(__name__)

TRANSACTION_TIMEOUT_MS = 15_000  # a successor waits at most this long for a dead worker's open transaction
CALL_TIMEOUT_S = 20.0
CALL_ATTEMPTS = 3
_REPORT_S = 1.0

_LOST_MEMBERSHIP = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
    }
)
_FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_FIXES: Mapping[int, str] = {
    **FIXES,
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant this service's principal READ on its group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant this service's principal its transactional id",
    KafkaError._FENCED: "two workers share one ONEFOLD_INSTANCE, so name them differently",
    KafkaError.INVALID_PRODUCER_EPOCH: "two workers share one ONEFOLD_INSTANCE, so name them differently",
}

# of a record that was sent twice, as while leaders move, and that its broker knew already
_NOWHERE = KafkaError(KafkaError.DUPLICATE_SEQUENCE_NUMBER, "the broker did not say where it is")

NO_ROW = b""  # a key that no row has, of a record that is never committed; a compacted topic takes none without a key

BEYOND = 2**63 - 1  # the end of any log: should it ever be committed, no worker would start there

BY_KEY = -1  # librdkafka's "no partition given": murmur2 of the key chooses it


Headers = tuple[tuple[str, bytes], ...]


Note = Callable[[int, int, int], None]
"""Is told partition, offset and the broker's time in ms, in the producer's thread, of a record that is written, though
its transaction may still fail.
"""


class Record(Struct, frozen=True, gc=False):
    """One record to write."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int = BY_KEY
    headers: Headers = ()
    note: Note | None = None


class TransactionAborted(Exception):
    """The batch was not committed, or its result is unknown: start again from the committed offsets.

    lost_membership: the group has moved on, so another worker may own the partitions.
    """

    def __init__(self, reason: str, lost_membership: bool = False) -> None:
        super().__init__(reason)
        self.lost_membership = lost_membership


class TransactionRefused(Exception):
    """The batch was not committed, and trying again can't help.

    Operator action: do what the message says, then start the worker again.
    """


class RecordTooLarge(TransactionRefused):
    """A record of the batch is larger than its topic takes. topic: its name, empty if it is not known."""

    def __init__(self, reason: str, topic: str) -> None:
        super().__init__(reason)
        self.topic = topic


class TransactionalProducer:
    """Writes each batch exactly once, with `send` and `commit`. Blocking and not thread-safe: use one thread."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._config = producer_config(
            bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            queue_buffering_max_messages=1_000_000,
            queue_buffering_max_kbytes=256 * 1024,
            linger_ms=1,
            # by default 30 s, which a transaction does not last: its record would time out, and nothing name the cause
            topic_metadata_propagation_max_ms=MISSING_TOPIC_TIMEOUT_S * 1000,
            # A commit that waits for the group's coordinator wakes only when a connection opens or closes, not even
            # when that broker leaves the cluster (librdkafka issues 5511, 5456). So idle connections are closed.
            connections_max_idle_ms=3_000,
            enable_sparse_connections=False,
        )
        self._producer: Producer | None = None
        self._connections = _Connections()
        self._began: float | None = None  # when the transaction began, by `elapsed_s`; None without one
        self._last = _LastDeliveries()
        self._report_all = False
        self._missed = False  # whether the last transaction failed for want of a topic

    def send(self, records: Sequence[Record]) -> None:
        """Begin a transaction with `records`. Raises as `commit` does."""
        self._last = _LastDeliveries()
        with self._aborting_on_failure():
            producer = self._begun()
            failpoints.reached("before_produce")
            _produce(producer, records, self._last, report_all=self._report_all)
            failpoints.reached("after_produce")

    def commit(self, offsets: Mapping[Place, int], member: bytes) -> Mapping[Place, int]:
        """Commit the sent records, and with them `offsets` for the group member.

        offsets: the next offset to read, by source partition. member: from `group_metadata`.
        Returns the offset of the last record written to each partition.
        Raises TransactionAborted, after which the batch may be tried again, or TransactionRefused.
        """
        producer = self._producer
        assert producer is not None, "nothing was sent"
        with self._aborting_on_failure():
            self._flush(producer, CALL_TIMEOUT_S)
            # Only after the flush: a record that is still queued here could be written after the generation check.
            failpoints.reached("before_offsets")
            _send_offsets(producer, offsets, member)
            failpoints.reached("after_offsets")
            _retried(lambda: producer.commit_transaction(CALL_TIMEOUT_S))
        self._report_all = self._missed = False
        return self._last.offsets

    def forget_pending(self, places: Iterable[Place], member: bytes) -> None:
        """Abort a transaction with offsets of `places`: the group's coordinator then drops our pending offsets.

        A coordinator that is elected again while it loads its log, as after a quick restart, loads it twice. Offsets
        whose transaction was aborted meanwhile then stay pending, and no member can read them (Kafka 4.1.2).
        Waits for each answer once, so that its caller can give up. Raises as `commit` does.
        """
        with self._aborting_on_failure(ANSWER_S):
            producer = self._begun(attempts=1, timeout_s=ANSWER_S)
            positions = [TopicPartition(*place, BEYOND) for place in places]
            producer.send_offsets_to_transaction(positions, member, ANSWER_S)
            producer.abort_transaction(ANSWER_S)

    def written_ends(self, places: Iterable[Place]) -> Mapping[Place, int]:
        """Where each partition ends, found by writing a record there, which is aborted, and its marker behind it.

        Only its leader can write, with enough replicas; a broker that was superseded may still answer a question for
        the end. Waits for each answer once. Raises as `commit` does.
        """
        self._last = _LastDeliveries()
        records = [Record(place.topic, NO_ROW, None, place.number) for place in places]
        with self._aborting_on_failure(ANSWER_S):
            producer = self._begun(attempts=1, timeout_s=ANSWER_S)
            _produce(producer, records, self._last, report_all=True)
            self._flush(producer, ANSWER_S)
            producer.abort_transaction(ANSWER_S)
        return self._last.offsets

    def _flush(self, producer: Producer, timeout_s: float) -> None:
        unsent = producer.flush(timeout_s)
        if self._last.error is not None:
            raise KafkaException(self._last.error)
        if unsent:
            raise TransactionAborted(f"{unsent} records unsent after {timeout_s:.0f} s")

    @contextmanager
    def _aborting_on_failure(self, timeout_s: float = CALL_TIMEOUT_S) -> Iterator[None]:
        """Abort the transaction if anything inside fails."""
        try:
            yield
        except KafkaException as failure:
            self._report_all = True
            expired = self._began is not None and elapsed_s() - self._began > TRANSACTION_TIMEOUT_MS / 1000
            self._abort(timeout_s)
            error: KafkaError = failure.args[0]
            place = self._last.failed_at if error is self._last.error else ""
            missed, self._missed = self._missed, error.code() in _MISSING
            if error.code() in _TOO_LARGE:
                topic = self._last.failed_topic if place else ""
                size = self._last.failed_size if place else ""
                told = f"{place}{size}{error.str()} ({error.name()}); fix: {_FIXES[error.code()]}"
                raise RecordTooLarge(told, topic) from failure
            raise _typed(error, expired, place, missed) from failure
        except BaseException:
            self._abort(timeout_s)
            raise

    def _begun(self, attempts: int = CALL_ATTEMPTS, timeout_s: float = CALL_TIMEOUT_S) -> Producer:
        """The producer, with a new transaction. Once it has failed, a new producer takes over its transactional id.

        So it does once a connection has failed, though librdkafka goes on by another: what was under way by the first
        may reach the broker late, and would be taken for a request of the next transaction, such as to end it
        (KIP-890, librdkafka issue 5423). With a new producer, it is of an epoch that has passed.
        """
        self._began = None
        if self._producer is not None:
            self._producer.poll(0)  # brings what is logged
            self._producer = None if self._connections.failed else self._producer
        if self._producer is None:
            self._connections = _Connections()
            producer = Producer({**self._config, "logger": self._connections})
            _retried(lambda: producer.init_transactions(timeout_s), attempts)
            self._producer = producer
        self._producer.begin_transaction()
        self._began = elapsed_s()
        return self._producer

    def _abort(self, timeout_s: float) -> None:
        """End the transaction, or let a new producer end it by taking over the transactional id.

        The next transaction is a new producer's anyway: librdkafka keeps a producer id that brokers have forgotten, as
        they do after a week without a transaction, and then can't commit offsets ever again.
        """
        if self._producer is None:
            return
        with suppress(KafkaException):
            self._producer.abort_transaction(timeout_s)
        self._producer = None


class _Connections:
    """In place of librdkafka's logger. failed: whether one has, that was established; nothing else tells."""

    def __init__(self) -> None:
        self.failed = False

    def log(self, level: int, text: str, facility: str, client: str, message: str) -> None:
        self.failed |= facility == "FAIL" and "in state UP" in message
        logging.getLogger("librdkafka").log(level, text, facility, client, message)


class _LastDeliveries:
    """The offset of the last record in each partition, and the first failure, with its record's place."""

    def __init__(self) -> None:
        self.sent = elapsed_s()
        self.offsets: dict[Place, int] = {}
        self.error: KafkaError | None = None
        self.failed_at = ""
        self.failed_topic = ""
        self.failed_size = ""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None and (offset := message.offset()) is not None:
            self.offsets[Place(message.topic(), message.partition())] = offset  # type: ignore[arg-type]
            learn_time(message, self.sent)
        else:
            self.fail(error or _NOWHERE, message.topic(), message.partition(), message.key(), message.value())

    def fail(
        self, error: KafkaError, topic: str | None, partition: int | None, key: bytes | None, value: bytes | None
    ) -> None:
        if self.error is None:
            self.error, self.failed_at, self.failed_topic = error, f"{topic}/{partition}, key {key!r}: ", topic or ""
            self.failed_size = f"{len(value or b'')} bytes: "


def _produce(producer: Producer, records: Sequence[Record], last: _LastDeliveries, report_all: bool) -> None:
    """Hand all records to librdkafka as its queue has room; a failed record makes the transaction's next call fail.

    A delivery report for every record would halve the speed. Order within a partition is kept, so only the last record
    of each partition asks for a report; after a failure all do, because that next call's error does not name the cause.
    """
    latest = {(record.topic, record.partition): index for index, record in enumerate(records)}
    reported = range(len(records)) if report_all else set(latest.values())
    produce = producer.produce
    for index, record in enumerate(records):
        give_up = 0.0
        more: dict[str, Any] = {"headers": [*record.headers]} if record.headers else {}
        while True:
            try:
                if record.note is not None:
                    noted = partial(_noted, last, record.note)
                    produce(record.topic, record.value, record.key, record.partition, on_delivery=noted, **more)
                elif index in reported:
                    produce(record.topic, record.value, record.key, record.partition, on_delivery=last, **more)
                else:
                    produce(record.topic, record.value, record.key, record.partition, **more)
                break
            except BufferError:  # the queue is full
                give_up = give_up or time.monotonic() + CALL_TIMEOUT_S
                if time.monotonic() > give_up:
                    raise TransactionAborted(f"librdkafka's queue stays full for {CALL_TIMEOUT_S:.0f} s") from None
                producer.poll(0.01)
            except KafkaException as failure:
                if failure.args[0].code() == KafkaError._STATE:
                    producer.poll(_REPORT_S)  # an earlier record has failed: its report has the cause
                else:  # librdkafka knows the topic already, and refuses this record at once
                    last.fail(failure.args[0], record.topic, record.partition, record.key, record.value)
                raise KafkaException(last.error or failure.args[0]) from failure


def _noted(last: _LastDeliveries, note: Note, error: KafkaError | None, message: Message) -> None:
    last(error, message)
    partition, offset = message.partition(), message.offset()
    if error is None and partition is not None and offset is not None:
        note(partition, offset, message.timestamp()[1])


def _send_offsets(producer: Producer, offsets: Mapping[Place, int], member: bytes) -> None:
    positions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    _retried(lambda: producer.send_offsets_to_transaction(positions, member, CALL_TIMEOUT_S))


def producer_id(group: str, instance: str) -> str:
    """The transactional id of a worker. Groups have no underscore, so only this group's ids begin with `<group>_`."""
    return f"{group}_{instance}"


def group_metadata(group: str, generation: int, member_id: str, instance_id: str | None = None) -> bytes:
    """The bytes that librdkafka's consumer_group_metadata() gives for this member of the group.

    The broker refuses a transaction of any generation but the current one, and so fences a former owner.
    Taken when partitions are assigned, so that a batch of an earlier assignment can't use a later generation.
    Raises ValueError for the values of a consumer outside any group, for which the broker would fence nothing.
    """
    if generation < 0 or not member_id:
        raise ValueError(f"{member_id!r} in generation {generation} is no member of a group")
    head = b"CGMDv2:" + struct.pack("<i", generation) + group.encode() + b"\0" + member_id.encode() + b"\0"
    return head + (b"\x01" if instance_id is None else b"\x00" + instance_id.encode() + b"\0")


def _retried(call: Callable[[], object], attempts: int = CALL_ATTEMPTS) -> None:
    """Repeat a transaction call that timed out: librdkafka resumes it."""
    for attempt in range(1, attempts + 1):
        try:
            call()
            return
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if not error.retriable() or error.txn_requires_abort() or attempt == attempts:
                raise
            log.info("transaction call is tried again", reason=error.str())


def _typed(error: KafkaError, expired: bool, place: str, missed: bool) -> Exception:
    """expired: the transaction is so old that its coordinator aborts it, with the same error as for a twin.

    place: of the record that could not be written, if it was one. missed: whether a topic was missing before, too: the
    first time, it may be that a broker has just started, and knows less than its clients.
    """
    code, text = error.code(), f"{place}{error.str()} ({error.name()})"
    if code in _LOST_MEMBERSHIP:
        return TransactionAborted(error.str(), lost_membership=True)
    if code in _FENCED and expired:
        return TransactionAborted(
            f"the transaction was open for longer than {TRANSACTION_TIMEOUT_MS / 1000:.0f} s ({error.name()})"
        )
    if code in _MISSING and not missed:
        return TransactionAborted(text)
    if code in _FIXES:
        return TransactionRefused(f"{text}; fix: {_FIXES[code]}")
    if error.fatal():
        return TransactionRefused(f"{text}; fix: start the worker again")
    return TransactionAborted(text)
