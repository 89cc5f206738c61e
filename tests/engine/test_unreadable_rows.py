"""A stored row that nobody can read stops its key, and says so over HTTP; its worker and the other keys go on."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer

from shared.dev.stack import Stack
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import producer_config
from shared.kafka.spans import read_all
from tests.accounts.topology import ACCOUNTS, TOPOLOGY
from tests.api.client import Client
from tests.engine.parked import ask, await_letter

pytestmark = pytest.mark.broker

ROWS = TOPOLOGY.changelog(ACCOUNTS).name


def test_its_key_is_parked_and_the_others_go_on(stack: Stack) -> None:
    account, other = (f"unreadable-{uuid.uuid4()}" for _ in range(2))
    partition = partition_of(account.encode(), TOPOLOGY.partitions)
    first = Client(stack.urls("accounts")[0])
    for each in (account, other):
        assert first.post(f"/accounts/{each}").status == 201
    row = next(value for _, key, value in read_all(Brokers(stack.bootstrap), ROWS) if key == account.encode())
    assert row is not None
    _restart_with(stack, account, row.replace(b'"phase":"open"', b'"phase":"melted"'))
    pids = [worker.pid for worker in stack.workers_of("accounts")]

    for client in map(Client, stack.urls("accounts")):
        unread = client.get(f"/accounts/{account}")
        assert (unread.status, unread.code) == (500, "row.unreadable")
        assert f"{ROWS}/{partition}: the row of '{account}' can't be read" in unread.json["detail"]
        assert client.get(f"/accounts/{other}").status == 200
    sent = first.post(f"/accounts/{account}/charges", {"amount_cents": 5}, Prefer="respond-async")
    assert sent.status == 202
    letter = f"accounts/{partition}/{account}"
    await_letter(stack, letter, code="row.unreadable", behind=0)
    assert first.post(f"/accounts/{other}/charges", {"amount_cents": 5}, Prefer="wait=30").status == 201
    assert first.get(sent.headers["location"]).code == "row.unreadable"
    assert [worker.pid for worker in stack.workers_of("accounts")] == pids

    _restart_with(stack, account, row)
    ask(stack, letter, "retry")
    await_letter(stack, letter)
    assert first.get(f"/accounts/{account}").json["balance_cents"] == 5


def _restart_with(stack: Stack, account: str, row: bytes) -> None:
    """The workers find this row in their changelog, as if another release had written it."""
    for worker in stack.workers_of("accounts"):
        worker.stop()
    producer = Producer(producer_config(stack.bootstrap))
    producer.produce(ROWS, row, account.encode(), partition_of(account.encode(), TOPOLOGY.partitions))
    assert producer.flush(30) == 0
    for worker in stack.workers_of("accounts"):
        worker.spawn()
    for worker in stack.workers_of("accounts"):
        worker.await_ready()
