"""A batch larger than librdkafka's queue is written whole or not at all; the topic limits the size of a record."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from shared.group.app import REBALANCE_S
from shared.kafka import transactions
from shared.kafka.producer import producer_config
from shared.kafka.transactions import (
    Record,
    TransactionAborted,
    TransactionalProducer,
    TransactionRefused,
    group_metadata,
    producer_id,
)
from shared.operations.provision import provision
from shared.runtime import failpoints
from shared.runtime.clock import BrokersClock
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.topology.topics import Topic, Topology

ROWS = Topic("rows.events.v1")
COPIES = [Record("shop.copies.v1", b"key", b"copy", partition) for partition in (0, 1) for _ in range(500)]


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> TransactionalProducer:
    """A producer with a queue of ten records, on librdkafka's mock broker."""

    def small(bootstrap: str, **settings: Any) -> dict[str, Any]:
        small = {"queue_buffering_max_messages": 10, "test_mock_num_brokers": 1}
        return producer_config(bootstrap, **settings | small)

    monkeypatch.setattr(transactions, "producer_config", small)
    monkeypatch.setattr("shared.kafka.producer.brokers_clock", BrokersClock())  # by the mock broker, it is 1970
    return TransactionalProducer("127.0.0.1:1", "shop-1")


def test_a_batch_larger_than_the_queue_is_written_whole(producer: TransactionalProducer) -> None:
    producer.send(COPIES)
    last = producer.commit({}, group_metadata("shop", 1, "worker"))
    assert last == {("shop.copies.v1", 0): 499, ("shop.copies.v1", 1): 499}


def test_a_queue_that_stays_full_aborts_the_batch(
    producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck:
        aborted = 0

        def begin_transaction(self) -> None: ...

        def produce(self, *_: object, **__: object) -> None:
            raise BufferError

        def poll(self, _timeout_s: float) -> None: ...

        def abort_transaction(self, _timeout_s: float) -> None:
            self.aborted += 1

    stuck = Stuck()
    producer._producer = cast(Any, stuck)
    monkeypatch.setattr(transactions, "CALL_TIMEOUT_S", 0.02)
    with pytest.raises(TransactionAborted, match="queue stays full"):
        producer.send(COPIES)
    assert stuck.aborted == 1


@pytest.mark.skipif(sys.platform != "linux", reason="no clock of this platform runs while the machine sleeps")
def test_a_transaction_that_timed_out_during_sleep_is_aborted(
    producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator has aborted it, and gives the same error as for a second worker with this id."""

    def refuse(_step: str) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED))

    producer.send(COPIES)
    woken = time.clock_gettime(time.CLOCK_BOOTTIME) + 60.0
    monkeypatch.setattr("time.clock_gettime", lambda _: woken)
    monkeypatch.setattr(failpoints, "reached", refuse)
    with pytest.raises(TransactionAborted, match="open for longer than 15 s"):
        producer.commit({}, group_metadata("shop", 1, "worker"))


def test_clearing_pending_offsets_gives_up_before_its_worker_is_told_to_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group waits 15 s for a worker to release its partitions."""
    waited_s: list[float] = []

    class Silent:
        def __init__(self, _config: object) -> None: ...

        def init_transactions(self, timeout_s: float) -> None:
            waited_s.append(timeout_s)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, retriable=True))

    monkeypatch.setattr(transactions, "Producer", Silent)
    with pytest.raises(TransactionAborted, match="TIMED_OUT"):
        TransactionalProducer("nobody", "shop-1").forget_pending([Place("shop.commands.v1", 0)], b"")
    assert sum(waited_s) < REBALANCE_S


def test_a_twin_is_told_from_an_expired_transaction_after_a_slow_start(
    producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer may wait long for its brokers before its transaction begins."""
    started_s = [0.0]

    class Twin:
        def __init__(self, _config: object) -> None: ...

        def init_transactions(self, _timeout_s: float) -> None:
            started_s[0] += 60.0

        def begin_transaction(self) -> None: ...

        def send_offsets_to_transaction(self, *_: object) -> None:
            raise KafkaException(KafkaError(KafkaError._FENCED))

        def abort_transaction(self, _timeout_s: float) -> None:
            raise KafkaException(KafkaError(KafkaError._FENCED))

    monkeypatch.setattr(transactions, "elapsed_s", lambda: started_s[0])
    monkeypatch.setattr(transactions, "Producer", Twin)
    with pytest.raises(TransactionRefused, match="two workers share one ONEFOLD_INSTANCE"):
        TransactionalProducer("nobody", "twin").forget_pending([Place("shop.commands.v1", 0)], b"")


@pytest.mark.broker
def test_an_end_found_by_writing_is_that_of_all_written_before(
    bootstrap: str, topic: str, put: Callable[..., None]
) -> None:
    put(b"a", b"b")
    put(b"never", abort=True)
    one, two = places = [Place(topic, number) for number in (0, 1)]
    producer = TransactionalProducer(bootstrap, f"{topic}-ends")
    assert producer.written_ends(places) == {one: 5, two: 0}
    assert producer.written_ends([one]) == {one: 7}
    put(b"c")
    assert producer.written_ends(places) == {one: 11, two: 2}


class Reported:
    """A producer whose records are all reported like this; offset: by partition, None where it is not told."""

    def __init__(self, error: KafkaError | None, offset: Mapping[int, int | None]) -> None:
        self.error, self.offset = error, offset
        self.report: Callable[[], object] = lambda: None  # what the next poll brings
        self.aborts = 0

    def begin_transaction(self) -> None: ...

    def poll(self, _timeout_s: float) -> None:
        self.report()

    def produce(self, topic: str, _: object, key: bytes, partition: int, on_delivery: Any = None) -> None:
        message = SimpleNamespace(
            topic=lambda: topic,
            partition=lambda: partition,
            key=lambda: key,
            offset=lambda: self.offset[partition],
            value=lambda: b"",
            timestamp=lambda: (0, 0),
        )
        if on_delivery is not None:
            on_delivery(self.error, message)

    def flush(self, _timeout_s: float) -> int:
        return 0

    def abort_transaction(self, _timeout_s: float) -> None:
        self.aborts += 1


def test_a_record_that_can_not_be_written_is_named(producer: TransactionalProducer) -> None:
    producer._producer = cast(Any, Reported(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), {}))
    producer.send(COPIES)
    with pytest.raises(TransactionRefused, match=r"^shop\.copies\.v1/0, key b'key': .*; fix: make the command"):
        producer.commit({}, group_metadata("shop", 1, "worker"))


def test_the_cause_is_named_not_the_later_record_that_librdkafka_does_not_take_any_more(
    producer: TransactionalProducer,
) -> None:
    class Failing(Reported):
        """Has failed to write its first record when it is given the second one."""

        def produce(self, topic: str, value: object, key: bytes, partition: int, on_delivery: Any = None) -> None:
            if partition != COPIES[0].partition:
                raise KafkaException(KafkaError(KafkaError._STATE))
            self.report = partial(super().produce, topic, value, key, partition, on_delivery)

    producer._producer = cast(Any, Failing(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), {}))
    with pytest.raises(TransactionRefused, match=r"^shop\.copies\.v1/0, key b'key': .*; fix: make the command"):
        producer.send(COPIES)


def test_a_batch_of_which_the_brokers_do_not_say_where_it_is_is_aborted(producer: TransactionalProducer) -> None:
    """They get records again while leaders move; offsets that are not known can't be stored with the rows."""
    repeated = Reported(None, {0: 9, 1: None})
    producer._producer = cast(Any, repeated)
    producer.send(COPIES)
    with pytest.raises(TransactionAborted, match=r"^shop\.copies\.v1/1, key b'key': .*did not say where"):
        producer.commit({}, group_metadata("shop", 1, "worker"))
    assert repeated.aborts == 1


@pytest.mark.broker
def test_the_topic_limits_the_size_of_a_record(bootstrap: str) -> None:
    provision([Topology("rows", (ROWS,), partitions=1)], Settings(bootstrap=bootstrap))
    producer, nobody = TransactionalProducer(bootstrap, "rows"), group_metadata("rows", 1, "worker")

    def write(size_bytes: int) -> None:
        producer.send([Record(ROWS.name, b"k", b"row"), Record(ROWS.name, b"k", bytes(size_bytes))])
        producer.commit({}, nobody)

    write(2**20 - 100)  # a topic takes 1 MiB and 12 bytes by default
    with pytest.raises(TransactionRefused, match=r"raise the topic's max\.message\.bytes"):
        write(2**20)


@pytest.mark.broker
def test_a_topic_that_does_not_exist_is_refused_when_it_is_missed_again(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time, it may be a broker that has just started, and knows less than its clients."""
    monkeypatch.setattr(transactions, "MISSING_TOPIC_TIMEOUT_S", 1)
    there, late = Topic("here.events.v1"), Topic("late.events.v1")
    provision([Topology("here", (there,), partitions=1)], Settings(bootstrap=bootstrap))
    producer, nobody = TransactionalProducer(bootstrap, "missing"), group_metadata("missing", 1, "worker")

    def write(topic: str) -> None:
        producer.send([Record(topic, b"k", b"v", 0)])
        producer.commit({}, nobody)

    with pytest.raises(TransactionAborted, match=r"^late\.events\.v1/0, key b'k': "):
        write(late.name)
    provision([Topology("late", (late,), partitions=1)], Settings(bootstrap=bootstrap))
    for topic in (late, there):
        write(topic.name)
    with pytest.raises(TransactionAborted):
        write("gone.events.v1")
    with pytest.raises(TransactionRefused, match=r"^gone\.events\.v1/0, key b'k': .*; fix: run `provision`"):
        write("gone.events.v1")


@pytest.mark.broker
def test_a_partition_that_its_topic_lacks_is_refused_when_it_is_missed_again(bootstrap: str) -> None:
    small = Topic("small.events.v1")
    provision([Topology("small", (small,), partitions=1)], Settings(bootstrap=bootstrap))
    producer, nobody = TransactionalProducer(bootstrap, "small"), group_metadata("small", 1, "worker")

    def write(partition: int) -> None:
        producer.send([Record(small.name, b"k", b"v", partition)])
        producer.commit({}, nobody)

    write(0)
    with pytest.raises(TransactionAborted, match=r"^small\.events\.v1/1, key b'k': "):
        write(1)
    with pytest.raises(TransactionRefused, match=r"^small\.events\.v1/1, .*fewer partitions than this service; run"):
        write(1)


def test_workers_of_two_services_never_share_a_transactional_id() -> None:
    assert producer_id("orders", "archive-1") != producer_id("orders-archive", "1")
    assert producer_id("orders", "v2-1") != producer_id(Topology("orders", (), version=2).group, "1")
