"""What others do to a partition does not stop a worker: it tells what holds the records back, and serves on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from shared.dev.stack import Stack
from shared.dev.status import Line, status
from shared.dev.worker import Worker
from shared.kafka.murmur2 import partition_of
from tests.accounts.topology import COMMANDS, TOPOLOGY
from tests.conftest import accounts_stack
from tests.faults import broken
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.broker

BLOCKED = 0
LONG_S = 7.0  # longer than the partition may stand before a worker that is at fault would end
TEN_MINUTES_S = 600.0
AT_MOST_HELD = 50


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with accounts_stack(tmp_path_factory.mktemp("blocked"), workers=1) as stack:
        (worker,) = stack.workers
        worker.stop()
        worker.command = broken.command(broken.watches_often)
        worker.start()
        yield stack


@pytest.mark.long  # in short, how it is found, in tests/unit/doctor/test_look
def test_an_open_transaction_of_a_neighbour_is_told_and_ends_nothing(watching: Stack) -> None:
    _is_told_and_ends_nothing(watching, LONG_S)
    assert watching.workers[0].log.read_text().count("records are held back") == 1


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_transaction_that_is_open_for_ten_minutes_ends_nothing_either(tmp_path: Path) -> None:
    with accounts_stack(tmp_path, workers=1) as stack:
        _is_told_and_ends_nothing(stack, TEN_MINUTES_S)


def _is_told_and_ends_nothing(stack: Stack, open_s: float) -> None:
    (worker,) = stack.workers
    keys = (f"open-{number}" for number in count())
    held: list[str] = []
    free: list[str] = []
    with _left_open(stack.bootstrap):

        def opened_more() -> list[dict[str, Any]]:
            for key in (next(keys) for _ in range(5 if len(held) < AT_MOST_HELD else 0)):
                (held if _partition(key) == BLOCKED else free).append(key)
                _open_account(worker, key)
            return [each for each in _troubles(worker) if each["partition"] == BLOCKED]

        (told,) = eventually(
            opened_more, lambda troubles: any(each["for_s"] > open_s for each in troubles), open_s + PATIENCE_S
        )
        assert told["topic"] == COMMANDS.name
        assert "open transaction" in told["reason"]
        assert "fix: `doctor` names the producer" in told["reason"]
        (line,) = _lines(stack, worker, "blocked")
        assert f"{COMMANDS.name}/{BLOCKED}" in line.text
        assert line.wrong
        label = f'onefold_blocked_seconds{{partition="{BLOCKED}",topic="{COMMANDS.name}"}}'
        assert label in httpx.get(f"{worker.url}/metrics").text
        eventually(lambda: [key for key in free if _status_of(worker, key) != 200], lambda missing: not missing)
        assert {_status_of(worker, key) for key in held} == {404}
        assert httpx.get(f"{worker.url}/readyz").status_code == 200
    eventually(lambda: [key for key in held if _status_of(worker, key) != 200], lambda missing: not missing)
    eventually(lambda: _troubles(worker), lambda troubles: not troubles)
    assert worker.running
    assert "the worker stops" not in worker.log.read_text()


@contextmanager
def _left_open(bootstrap: str) -> Iterator[None]:
    """A producer that nobody knows has written one record, and does not end its transaction."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "stray", "transaction.timeout.ms": 900_000}
    )
    producer.init_transactions(30.0)
    producer.begin_transaction()
    producer.produce(COMMANDS.name, b"{}", b"stray", BLOCKED)
    producer.flush(30.0)
    try:
        yield
    finally:
        producer.abort_transaction(30.0)


def _partition(key: str) -> int:
    return partition_of(key.encode(), TOPOLOGY.partitions)


def _open_account(worker: Worker, key: str) -> None:
    answer = httpx.post(f"{worker.url}/accounts/{key}", headers={"Prefer": "respond-async"}, timeout=30.0)
    assert answer.status_code in (201, 202)


def _status_of(worker: Worker, key: str) -> int:
    return httpx.get(f"{worker.url}/accounts/{key}", timeout=30.0).status_code


def _troubles(worker: Worker) -> list[dict[str, Any]]:
    return list(httpx.get(f"{worker.url}/cluster", timeout=30.0).json().get("troubles", ()))


def _lines(stack: Stack, worker: Worker, about: str) -> list[Line]:
    lines = status([TOPOLOGY], {TOPOLOGY.service: [worker.url]}, stack.settings)[TOPOLOGY.service]
    return [line for line in lines if line.about == about]
