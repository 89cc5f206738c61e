"""A record that its topic does not take ends the worker, and the next one, until somebody does what their logs say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from services.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from shared.dev.stack import Stack
from shared.kafka.access import client_config
from shared.kafka.murmur2 import partition_of
from shared.topology import Topic
from tests.faults.harness import Log
from tests.waiting import eventually

pytestmark = pytest.mark.broker

TOO_SMALL_BYTES = 100
FIX = "fix: make the command, event or row smaller, or raise the topic's max.message.bytes"


@pytest.mark.parametrize("topic", [EVENTS, TOPOLOGY.changelog(ACCOUNTS)], ids=["event", "row"])
def test_workers_end_at_a_record_that_is_too_large_and_name_it(stack: Stack, topic: Topic) -> None:
    account_id = f"too-large-for-{topic.name}"
    place = f"{topic.name}/{partition_of(account_id.encode(), TOPOLOGY.partitions)}, key b'{account_id}': "
    logs = [Log(worker) for worker in stack.workers]
    with _limited(stack.bootstrap, topic):
        with suppress(httpx.HTTPError):  # the worker may end before it answers
            httpx.post(f"{stack.workers[0].url}/accounts/{account_id}", timeout=60)
        eventually(lambda: [worker.exit_code for worker in stack.workers], lambda codes: None not in codes)
    assert [worker.exit_code for worker in stack.workers] == [1, 1]
    for log in logs:
        log.must_tell('"level": "critical"', "the worker stops: trying again can't help", place, FIX)
    for worker in stack.workers:
        worker.spawn()
    for worker in stack.workers:
        worker.await_ready()
        shown = eventually(
            lambda url=worker.url: httpx.get(f"{url}/accounts/{account_id}", timeout=30),  # type: ignore[misc]
            lambda answer: answer.status_code == 200,
        )
        assert shown.json()["phase"] == "open"


@contextmanager
def _limited(bootstrap: str, topic: Topic) -> Iterator[None]:
    """Inside the block the topic takes no record of ours."""
    _alter(bootstrap, topic, AlterConfigOpType.SET)
    try:
        yield
    finally:
        _alter(bootstrap, topic, AlterConfigOpType.DELETE)


def _alter(bootstrap: str, topic: Topic, operation: AlterConfigOpType) -> None:
    limit = ConfigEntry("max.message.bytes", str(TOO_SMALL_BYTES), incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[limit])
    admin = AdminClient(client_config(bootstrap))
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result()
