"""A group that lost its position in one source, and no other, does nothing twice; nor does a former version."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from shared.dev.stack import Stack
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from tests.accounts.topology import COMMANDS, EVENTS
from tests.conftest import WORKER_SETTINGS, variant_of_accounts
from tests.engine.copying_accounts import COPIED, WITH_COPIES
from tests.engine.parked import send
from tests.faults.load import command
from tests.waiting import eventually

pytestmark = pytest.mark.broker


@pytest.mark.long  # in short, test_next_version, on a fake
def test_a_worker_that_copies_refuses_to_begin_a_source_again_and_stops_once_another_version_has_begun(
    tmp_path: Path,
) -> None:
    group, variant = WITH_COPIES.group, variant_of_accounts("tests.engine.copying_accounts")
    with Stack(tmp_path, {group: 1}, settings=WORKER_SETTINGS, topologies=[WITH_COPIES], command=variant) as stack:
        (worker,), brokers = stack.workers, Brokers(stack.bootstrap)
        for name in ("ann", "bob", "cid"):
            number = partition_of(name.encode(), WITH_COPIES.partitions)
            send(stack.bootstrap, number, name.encode(), command(name, "c1", "account.open", {}))
        eventually(partial(_has_handled_all, brokers, group))
        assert worker.stop()
        copied = _copies(brokers)
        assert copied > 3  # records, and the marker of a transaction
        positions = brokers.positions(group)
        admin = AdminClient({"bootstrap.servers": stack.bootstrap})
        admin.delete_consumer_groups([group])[group].result()
        brokers.commit(group, {topic: each for topic, each in positions.items() if topic != EVENTS.name})
        worker.spawn()
        eventually(lambda: worker.exit_code)
        assert f"accounts has no position in {EVENTS.name}/" in worker.cause()
        assert "kafka-consumer-groups --reset-offsets" in worker.cause()
        assert _copies(brokers) == copied
        brokers.commit(group, {EVENTS.name: positions[EVENTS.name]})
        worker.start()
        assert _copies(brokers) == copied
        brokers.commit(WITH_COPIES.next_version.group, {EVENTS.name: positions[EVENTS.name]})
        eventually(lambda: worker.exit_code)
        assert "accounts-v2 has taken over from accounts" in worker.cause()


def _has_handled_all(brokers: Brokers, group: str) -> bool:
    positions = brokers.positions(group)
    return all(positions.get(topic.name) == brokers.settled_ends(topic.name) for topic in (COMMANDS, EVENTS))


def _copies(brokers: Brokers) -> int:
    return sum(brokers.settled_ends(COPIED.name).values())
