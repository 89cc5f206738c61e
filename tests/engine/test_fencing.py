"""The fencing that keeps each partition to one writer, tested on a real broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TypeVar

import pytest
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition

from shared.dev.embedded import EmbeddedKafka
from shared.dev.stack import Stack
from shared.engine.sources import SourceGone, first_position
from shared.kafka import offsets as offsets_module
from shared.kafka import transactions
from shared.kafka.brokers import Brokers
from shared.kafka.offsets import Offsets, OffsetsUnknown
from shared.kafka.producer import producer_config
from shared.kafka.transactions import (
    Record,
    TransactionAborted,
    TransactionalProducer,
    TransactionRefused,
    group_metadata,
)
from shared.operations.provision import provision
from shared.runtime import failpoints
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from tests.accounts.topology import COMMANDS, EVENTS, TOPOLOGY
from tests.faults.log import with_open_transactions
from tests.queries.cluster import owners
from tests.waiting import Deadline, eventually

pytestmark = pytest.mark.broker

SOURCE = Place("accounts.commands.v1", 0)
DEADLINE_S = 60.0

Answer = TypeVar("Answer")


@pytest.fixture
def bootstrap(stack: Stack) -> str:
    return stack.bootstrap


@pytest.fixture
def group() -> str:
    return f"fencing-{uuid.uuid4()}"


@pytest.mark.parametrize("instance_id", [None, "worker-1"])
def test_our_group_metadata_equals_librdkafkas_own(bootstrap: str, group: str, instance_id: str | None) -> None:
    with _member(bootstrap, group, instance_id) as member:
        ours = group_metadata(group, 1, str(member.memberid()), instance_id)
        assert ours == member.consumer_group_metadata()


def test_the_current_generation_may_commit(bootstrap: str, group: str) -> None:
    with _member(bootstrap, group) as member:
        _commit(bootstrap, group_metadata(group, 1, str(member.memberid())))
        assert Offsets(bootstrap).committed(group, [SOURCE]) == {SOURCE: 1}


def test_clearing_pending_offsets_keeps_committed_ones(bootstrap: str, group: str) -> None:
    with _member(bootstrap, group) as member:
        producer, ours = TransactionalProducer(bootstrap, group), group_metadata(group, 1, str(member.memberid()))
        producer.send([])
        producer.commit({SOURCE: 7}, ours)
        producer.forget_pending([SOURCE], ours)
        assert Offsets(bootstrap).committed(group, [SOURCE]) == {SOURCE: 7}
        producer.send([])
        producer.commit({SOURCE: 8}, ours)
        assert Offsets(bootstrap).committed(group, [SOURCE]) == {SOURCE: 8}


class NeverAborting(Producer):
    abort_transaction = Producer.commit_transaction


def test_what_was_aborted_would_stop_a_worker_if_it_were_committed(
    bootstrap: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in the brokers: with 0 in its place, history would be repeated without a word."""
    monkeypatch.setattr(transactions, "Producer", NeverAborting)
    with _member(bootstrap, group) as member:
        producer, ours = TransactionalProducer(bootstrap, group), group_metadata(group, 1, str(member.memberid()))
        producer.forget_pending([SOURCE], ours)
        committed = Offsets(bootstrap).committed(group, [SOURCE])[SOURCE]
        with pytest.raises(SourceGone):
            first_position(AioPartition(*SOURCE), committed, start=0, end=10**12)


def test_what_workers_sign_is_no_position(stack: Stack) -> None:
    """`rebuild` would take it for one."""
    owners(stack)
    positions = Brokers(stack.bootstrap).positions(TOPOLOGY.group)
    assert positions.keys() <= {COMMANDS.name, TOPOLOGY.parking.name, EVENTS.name}


@pytest.mark.long  # in short, one whose transaction timed out begins again
def test_a_worker_that_was_idle_until_the_brokers_forgot_its_producer_goes_on(tmp_path: Path, group: str) -> None:
    """They do so after `transactional.id.expiration.ms`, a week by default."""
    soon = {"transactional.id.expiration.ms": 1, "transaction.remove.expired.transaction.cleanup.interval.ms": 100}
    with EmbeddedKafka(tmp_path / "data", tmp_path / "logs", properties=soon) as kafka:
        bootstrap = kafka.bootstrap
        provision([TOPOLOGY], Settings(bootstrap=bootstrap))
        with _member(bootstrap, group) as member:
            producer, ours = TransactionalProducer(bootstrap, group), group_metadata(group, 1, str(member.memberid()))
            eventually(lambda: not _refusal(lambda: _write(producer, {SOURCE: 1}, ours)))
            reasons = (_refusal(lambda: producer.forget_pending([SOURCE], ours)) for _ in repeat(None))
            assert "INVALID_PRODUCER_ID_MAPPING" in next(filter(None, reasons))
            eventually(lambda: not _refusal(lambda: _write(producer, {SOURCE: 2}, ours)))
            assert Offsets(bootstrap).committed(group, [SOURCE]) == {SOURCE: 2}


@pytest.mark.parametrize("generation", [0, 2])
def test_a_member_of_another_generation_may_not_commit(bootstrap: str, group: str, generation: int) -> None:
    with _member(bootstrap, group) as member:
        with pytest.raises(TransactionAborted) as refused:
            _commit(bootstrap, group_metadata(group, generation, str(member.memberid())))
        assert refused.value.lost_membership
        assert Offsets(bootstrap).committed(group, [SOURCE]) == {SOURCE: None}


def test_an_unknown_member_may_not_commit(bootstrap: str, group: str) -> None:
    with _member(bootstrap, group):
        with pytest.raises(TransactionAborted) as refused:
            _commit(bootstrap, group_metadata(group, 1, "somebody else"))
        assert refused.value.lost_membership


def test_a_second_worker_with_the_same_instance_stops_the_first(bootstrap: str, group: str) -> None:
    with _member(bootstrap, group) as consumer:
        member = group_metadata(group, 1, str(consumer.memberid()))
        earlier, later = (TransactionalProducer(bootstrap, group) for _ in range(2))
        for producer in (earlier, later):
            _write(producer, {SOURCE: 1}, member)
        with pytest.raises(TransactionRefused, match="two workers share one ONEFOLD_INSTANCE"):
            _write(earlier, {SOURCE: 2}, member)


def test_a_worker_whose_transaction_timed_out_begins_again(
    bootstrap: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator has aborted the transaction, and gives the same error as for a second worker with this id."""
    monkeypatch.setattr(transactions, "TRANSACTION_TIMEOUT_MS", 5_000)
    monkeypatch.setattr(transactions, "producer_config", partial(producer_config, socket_timeout_ms=5_000))
    with _member(bootstrap, group) as consumer:
        member = group_metadata(group, 1, str(consumer.memberid()))
        producer = TransactionalProducer(bootstrap, group)
        with monkeypatch.context() as away:
            away.setattr(failpoints, "reached", partial(_await_abort, bootstrap))
            with pytest.raises(TransactionAborted, match="open for longer than 5 s"):
                _write(producer, {SOURCE: 1}, member, [Record(SOURCE.topic, b"key", b"value", SOURCE.number)])
        _write(producer, {SOURCE: 2}, member)
        assert Offsets(bootstrap).committed(group, [SOURCE]) == {SOURCE: 2}


@pytest.mark.parametrize(("generation", "member_id"), [(-1, ""), (-1, "m"), (1, "")])
def test_group_metadata_that_the_broker_does_not_fence_is_refused(generation: int, member_id: str) -> None:
    with pytest.raises(ValueError, match="no member of a group"):
        group_metadata("accounts", generation, member_id)


def test_pending_offsets_are_not_final(bootstrap: str, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_module, "ANSWER_S", 2.0)
    offsets = Offsets(bootstrap)
    with _member(bootstrap, group) as member:
        _commit(bootstrap, group_metadata(group, 1, str(member.memberid())))
        with _pending(bootstrap, group, member), pytest.raises(OffsetsUnknown, match="_TIMED_OUT"):
            offsets.committed(group, [SOURCE])
        assert _eventually(lambda: offsets.committed(group, [SOURCE])) == {SOURCE: 1}


def _commit(bootstrap: str, member: bytes) -> None:
    _write(TransactionalProducer(bootstrap, f"fencing-{uuid.uuid4()}"), {SOURCE: 1}, member)


def _write(
    producer: TransactionalProducer, offsets: Mapping[Place, int], member: bytes, records: Sequence[Record] = ()
) -> None:
    producer.send(records)
    producer.commit(offsets, member)


def _refusal(act: Callable[[], None]) -> str:
    """Why it was aborted; nothing if it was not."""
    try:
        act()
    except TransactionAborted as aborted:
        return str(aborted)
    return ""


def _await_abort(bootstrap: str, step: str) -> None:
    eventually(lambda: step != "before_offsets" or not with_open_transactions(bootstrap, [SOURCE]))


@pytest.mark.long  # in short, test_internals tells the causes
def test_a_worker_that_cannot_join_its_group_exits_and_says_why(stack: Stack) -> None:
    """Otherwise it would stay out for ever, even after the cause is fixed: aiokafka does not try again."""
    for worker in stack.workers:
        worker.stop()
    outsider, other = stack.workers
    with _member(stack.bootstrap, TOPOLOGY.group):
        outsider.spawn()
        eventually(lambda: not outsider.running)
    assert outsider.exit_code
    assert "stop the consumers that use" in outsider.log.read_text()
    outsider.start()
    other.start()
    owners(stack)


@contextmanager
def _member(bootstrap: str, group: str, instance_id: str | None = None) -> Iterator[Consumer]:
    """The only member of a group, in its first generation."""
    config = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(config | ({"group.instance.id": instance_id} if instance_id else {}))
    with closing(consumer):
        consumer.subscribe([SOURCE.topic])
        deadline = Deadline(DEADLINE_S)
        while not consumer.assignment():
            consumer.poll(0.1)
            deadline.check("the member was never assigned a partition")
        yield consumer


@contextmanager
def _pending(bootstrap: str, group: str, member: Consumer) -> Iterator[None]:
    """Inside the block, a transaction has sent offsets and is neither committed nor aborted."""
    producer = Producer(producer_config(bootstrap, transactional_id=f"fencing-{uuid.uuid4()}"))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition(*SOURCE, 7)], group_metadata(group, 1, str(member.memberid())), DEADLINE_S
    )
    yield
    producer.abort_transaction(DEADLINE_S)


def _eventually(ask: Callable[[], Answer]) -> Answer:
    deadline = Deadline(DEADLINE_S)
    while True:
        try:
            return ask()
        except OffsetsUnknown as unknown:
            deadline.check(unknown)
            time.sleep(0.05)
