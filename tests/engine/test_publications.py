"""What a service publishes is there once for each event, whoever is killed, and other teams can read it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from shared.dev.stack import Stack
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from tests.accounts.topology import COMMANDS, EVENTS
from tests.conftest import WORKER_SETTINGS, variant_of_accounts
from tests.engine.parked import send
from tests.engine.publishing_accounts import PUBLIC, WITH_PUBLIC
from tests.faults.load import command
from tests.public_events import read_events
from tests.waiting import eventually

pytestmark = pytest.mark.broker

NAMES = ("ann", "bob", "cid")
HALF, ALL = 500, 1000


def test_each_event_is_published_once_in_order_and_read_by_the_library_of_cloudevents(tmp_path: Path) -> None:
    group, variant = WITH_PUBLIC.group, variant_of_accounts("tests.engine.publishing_accounts")
    with Stack(tmp_path, {group: 1}, settings=WORKER_SETTINGS, topologies=[WITH_PUBLIC], command=variant) as stack:
        (worker,), brokers = stack.workers, Brokers(stack.bootstrap)
        for name in NAMES:
            send_to(stack, name, command(name, "open", "account.open", {}), *charges(name, range(1, HALF)))
        eventually(lambda: brokers.positions(group).get(EVENTS.name))
        worker.kill()
        for name in NAMES:
            send_to(stack, name, *charges(name, range(HALF, ALL)))
        worker.start()
        eventually(partial(has_handled_all, brokers))
        found = read_events(stack.bootstrap, PUBLIC.name)
    for name in NAMES:
        of_name = [each for each in found if each.get_subject() == name]
        assert [each.get_data() for each in of_name] == [{"cents": cents} for cents in range(2, ALL)]
        assert {each.get_extension("partitionkey") for each in of_name} == {name}
    assert len({each.get_id() for each in found}) == len(found) == len(NAMES) * (ALL - 2)
    assert {(each.get_source(), each.get_type(), each.get_datacontenttype()) for each in found} == {
        ("/accounts", "account.charged.v1", "application/json")
    }


def charges(name: str, cents: range) -> list[bytes]:
    return [command(name, f"c{each}", "account.charge", {"amount_cents": each}) for each in cents]


def send_to(stack: Stack, name: str, *bodies: bytes) -> None:
    send(stack.bootstrap, partition_of(name.encode(), WITH_PUBLIC.partitions), name.encode(), *bodies)


def has_handled_all(brokers: Brokers) -> bool:
    positions = brokers.positions(WITH_PUBLIC.group)
    return all(positions.get(topic.name) == brokers.settled_ends(topic.name) for topic in (COMMANDS, EVENTS))
