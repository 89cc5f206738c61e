"""Retention may remove records that were read; a worker whose unread records it removed stops and names them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from services.accounts.topology import COMMANDS, EVENTS, TOPOLOGY
from shared.dev.stack import Stack
from shared.kafka.brokers import Brokers
from shared.kafka.producer import producer_config
from tests.conftest import accounts_stack
from tests.faults.harness import Log, observe

pytestmark = pytest.mark.broker

PARTITIONS = range(TOPOLOGY.partitions)


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker on a broker of its own, from which the tests delete records."""
    with accounts_stack(tmp_path_factory.mktemp("lone"), workers=1) as stack:
        yield stack


def test_records_that_were_read_may_be_removed_with_the_markers_after_them(lone: Stack) -> None:
    (worker,), brokers = lone.workers, Brokers(lone.bootstrap)
    for number in range(50):
        httpx.post(f"{worker.url}/accounts/a{number}", timeout=60.0).raise_for_status()

    def read_to_the_end() -> bool:  # once the position is behind an event, its marker belongs to the end
        return brokers.positions(TOPOLOGY.group).get(EVENTS.name) == brokers.settled_ends(EVENTS.name)

    observe(read_to_the_end, "every marker is passed")
    worker.stop()
    _remove(lone.bootstrap, EVENTS.name)
    worker.start()
    httpx.post(f"{worker.url}/accounts/later", timeout=60.0).raise_for_status()


def test_unread_records_that_were_removed_stop_the_worker(lone: Stack) -> None:
    (worker,) = lone.workers
    log = Log(worker)
    worker.pause()
    producer = Producer(producer_config(lone.bootstrap))
    for partition in PARTITIONS:
        producer.produce(COMMANDS.name, b"{}", b"key", partition)
    assert producer.flush(60.0) == 0
    _remove(lone.bootstrap, COMMANDS.name)
    worker.resume()
    observe(lambda: worker.exit_code, "the worker exits")
    log.must_tell("the worker stops", f"{COMMANDS.name}/", "were removed before they were read")


def _remove(bootstrap: str, topic: str) -> None:
    """Deletes all records that are there now."""
    ends = Brokers(bootstrap).settled_ends(topic)
    wanted = [TopicPartition(topic, partition, ends[partition]) for partition in PARTITIONS]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records(wanted).values():
        done.result()
