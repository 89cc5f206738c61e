"""A worker whose clock is hours ahead works like the others, and says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from tests.accounts.topology import TOPOLOGY
from tests.conftest import accounts_stack
from tests.queries.cluster import PARTITIONS, answered, client, key_of, keys_in, path_of, post

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

AHEAD_S = 7200


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with accounts_stack(tmp_path_factory.mktemp("clocks"), workers=1) as stack:
        yield stack


def add_ahead(stack: Stack) -> Worker:
    """One more worker, whose clock is ahead."""
    worker = stack.add_worker(TOPOLOGY.service)
    worker.stop()
    python, _, faust, *rest = worker.command
    assert (python, faust) == (sys.executable, "faust")
    worker.command = [python, "-m", "tests.queries.ahead", str(AHEAD_S), *rest]
    worker.start()
    return worker


@pytest.mark.long  # in short, the simulation
async def test_a_worker_that_is_two_hours_ahead_passes_on_takes_on_and_dates_events_like_any_other(
    stack: Stack,
) -> None:
    (right,) = stack.workers
    async with client() as http:
        for partition in range(PARTITIONS):
            await post(http, right.url + path_of(next(keys_in(partition, "before"))))
        ahead = add_ahead(stack)
        for key in [key_of(stack, worker, "clock") for worker in (right, ahead)]:
            await post(http, ahead.url + path_of(key))
            for worker in (right, ahead):
                assert (await answered(partial(http.get, worker.url + path_of(key)))).status_code == 200
            events = (await http.get(f"{ahead.url}{path_of(key)}/events")).json()["items"]
            opened_at = datetime.fromisoformat(events[0]["occurred_at"])
            assert abs(datetime.now(UTC) - opened_at) < timedelta(seconds=AHEAD_S / 2)
        metrics = await http.get(f"{ahead.url}/metrics")
    (told,) = [line for line in metrics.text.splitlines() if line.startswith("onefold_clock_ahead_seconds ")]
    assert abs(float(told.split()[1]) - AHEAD_S) < AHEAD_S / 2
    assert "this machine's clock differs from the brokers'" in ahead.log.read_text()
    assert "this machine's clock differs" not in right.log.read_text()
