"""A topic that was deleted and made again has other records at the offsets that rows have: no worker skips them."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from shared.kafka.offsets import Offsets
from tests.accounts.topology import COMMANDS, TOPOLOGY
from tests.conftest import accounts_stack
from tests.faults import broken
from tests.waiting import eventually

pytestmark = pytest.mark.broker

PARTITION = 0
BEFORE, BURST = 5, 30
KEYS = [
    key for key in islice(map("account-{}".format, count()), 500)
    if partition_of(key.encode(), TOPOLOGY.partitions) == PARTITION
][:BEFORE]  # fmt: skip


def test_commands_that_were_made_again_are_refused_by_name_whatever_is_left_of_the_group(tmp_path: Path) -> None:
    with accounts_stack(tmp_path, workers=1) as stack:
        (worker,) = stack.workers
        _open_all(worker)
        assert worker.stop()
        admin = AdminClient({"bootstrap.servers": stack.bootstrap})
        _make_again(admin, stack)
        admin.delete_consumer_groups([TOPOLOGY.group])[TOPOLOGY.group].result()
        _send(stack, 3)
        _must_refuse(worker)


@pytest.mark.long  # in short, while it was stopped, above
def test_a_burst_of_commands_into_a_topic_made_again_under_a_worker_is_told_at_each_start(tmp_path: Path) -> None:
    """Its positions fit the new topic, too, because it is longer than the former one."""
    with accounts_stack(tmp_path, workers=1) as stack:
        (worker,) = stack.workers
        worker.stop()
        worker.command = broken.command(broken.watches_often)
        worker.start()
        _open_all(worker)
        _make_again(AdminClient({"bootstrap.servers": stack.bootstrap}), stack)
        _send(stack, BURST)
        eventually(lambda: worker.exit_code)
        assert f"{COMMANDS.name} was deleted while this worker ran" in worker.cause()
        assert sum(Brokers(stack.bootstrap).settled_ends(TOPOLOGY.dead_letters.name).values()) == 0  # none was handled
        _must_refuse(worker)


def _open_all(worker: Worker) -> None:
    for key in KEYS:
        assert httpx.post(f"{worker.url}/accounts/{key}", timeout=30.0).status_code in (201, 202)
    eventually(lambda: [key for key in KEYS if _status_of(worker, key) != 200], lambda missing: not missing)


def _status_of(worker: Worker, key: str) -> int:
    return httpx.get(f"{worker.url}/accounts/{key}", timeout=30.0).status_code


def _make_again(admin: AdminClient, stack: Stack) -> None:
    offsets = Offsets(stack.bootstrap)
    former = offsets.topic_ids([COMMANDS.name])
    admin.delete_topics([COMMANDS.name])[COMMANDS.name].result()
    eventually(lambda: offsets.topic_ids([COMMANDS.name]), lambda found: not found)
    stack.provision()
    eventually(lambda: offsets.topic_ids([COMMANDS.name]), lambda found: found not in ({}, former))


def _send(stack: Stack, number: int) -> None:
    producer = Producer({"bootstrap.servers": stack.bootstrap})
    for _ in range(number):
        producer.produce(COMMANDS.name, b"{}", KEYS[0].encode(), PARTITION)
    producer.flush(30.0)


def _must_refuse(worker: Worker) -> None:
    worker.spawn()
    eventually(lambda: worker.exit_code)
    cause = worker.cause()
    assert f"{COMMANDS.name} was deleted and made again" in cause
    assert "raise `version` in its topology.py, then `rebuild accounts`" in cause
