"""Retention may remove records that were read; a worker whose unread records it removed stops and names them.

A changelog that was made again, as on a second cluster, or whose first records are gone, is restored from its start.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from shared.dev.stack import Stack
from shared.kafka.brokers import Brokers
from shared.kafka.producer import producer_config
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS, TOPOLOGY
from tests.conftest import accounts_stack
from tests.faults.harness import Log, observe
from tests.faults.log import read_whole

pytestmark = pytest.mark.broker

PARTITIONS = range(TOPOLOGY.partitions)


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker on a broker of its own, from which the tests delete records."""
    with accounts_stack(tmp_path_factory.mktemp("lone"), workers=1) as stack:
        yield stack


@pytest.mark.long  # in short, outcomes that retention removed, below
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


@pytest.mark.long  # in short, a worker restores after a topic was deleted
def test_outcomes_are_restored_although_earlier_ones_are_gone(lone: Stack) -> None:
    """Retention removes the outcomes of days ago, as this does one of now, with all before it."""
    (worker,), outcomes = lone.workers, TOPOLOGY.outcomes
    assert outcomes is not None
    url = f"{worker.url}/accounts/kept"
    httpx.post(url, timeout=60.0).raise_for_status()
    _charge(url, "early")
    _remove(lone.bootstrap, TOPOLOGY.changelog(outcomes).name)
    late = _charge(url, "late")
    worker.stop()
    shutil.rmtree(lone.settings.data_dir / worker.name)
    worker.start()
    assert _charge(url, "late") == late
    assert _charge(url, "early")["sequence"] == late["sequence"] + 1


def test_a_worker_stops_when_a_topic_is_deleted_and_then_restores_what_is_there(lone: Stack) -> None:
    """The new one is longer than the store's offset, so that only its id tells that the store has not read it."""
    (worker,), brokers = lone.workers, Brokers(lone.bootstrap)
    url = f"{worker.url}/accounts/restored"
    httpx.post(url, json={"order_limit_cents": 4711}, timeout=60.0).raise_for_status()
    log, changelog = Log(worker), TOPOLOGY.changelog(ACCOUNTS).name
    ends = brokers.settled_ends(changelog)
    rows = read_whole(lone.bootstrap, changelog)
    admin = AdminClient({"bootstrap.servers": lone.bootstrap})
    admin.delete_topics([changelog])[changelog].result()
    observe(lambda: worker.exit_code, "the worker exits")
    log.must_tell("the worker stops", f"{changelog} was deleted while this worker ran")
    lone.provision()
    producer = Producer(producer_config(lone.bootstrap))
    for (_, partition), reads in rows.items():
        for read in reads:
            producer.produce(changelog, (read.value or b"").replace(b"4711", b"815"), read.key, partition)
        for _ in range(ends[partition]):
            producer.produce(changelog, None, b"unknown", partition)
    assert producer.flush(60.0) == 0
    worker.start()
    assert httpx.get(url, timeout=60.0).json()["order_limit_cents"] == 815


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


def _charge(account: str, key: str) -> dict[str, Any]:
    answer = httpx.post(f"{account}/charges", json={"amount_cents": 5}, headers={"Idempotency-Key": key}, timeout=60.0)
    return dict(answer.raise_for_status().json())


def _remove(bootstrap: str, topic: str) -> None:
    """Deletes all records that are there now."""
    ends = Brokers(bootstrap).settled_ends(topic)
    wanted = [TopicPartition(topic, partition, ends[partition]) for partition in PARTITIONS]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records(wanted).values():
        done.result()
