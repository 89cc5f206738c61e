"""Workers with a session of five minutes, longer than any test waits: what moves meanwhile moves without a time-out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from tests.conftest import accounts_stack
from tests.faults.harness import Log
from tests.queries.cluster import PARTITIONS, keys_in, owned_by, owners
from tests.waiting import eventually

pytestmark = pytest.mark.broker

SESSION_S = 300
DEADLINE_S = 120.0
TOOK_OVER = '"event": "took over"'


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with accounts_stack(tmp_path_factory.mktemp("patient"), workers=2, session_timeout_s=SESSION_S) as stack:
        yield stack


@pytest.mark.long  # in short, workers that are replaced one by one, in tests/releases
def test_the_partitions_of_a_worker_that_stops_move_at_once(patient: Stack) -> None:
    leaving, other = patient.workers
    lost = owned_by(patient, leaving)
    assert lost
    assert leaving.stop(DEADLINE_S)
    _open_one_in_each(other, range(PARTITIONS), "left")
    assert owned_by(patient, other) == [*range(PARTITIONS)]
    leaving.start()
    assert owned_by(patient, leaving)


@pytest.mark.long  # in short, the partitions of one that stops move at once
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_restart_within_the_session_moves_no_partition(patient: Stack, how: str) -> None:
    """Of either worker: one of them leads the group. After "stop" only if it is set not to leave."""
    for worker in patient.workers:
        worker.change(leave_on_stop=False)
        worker.kill()
        worker.start()
    before = owners(patient)
    for worker, other in (patient.workers, patient.workers[::-1]):
        log, others = Log(worker), Log(other)
        getattr(worker, how)()
        _open_one_in_each(other, _owned_in(before, other), f"{how}-{worker.instance}-without")
        worker.start()
        assert owners(patient) == before
        _open_one_in_each(other, range(PARTITIONS), f"{how}-{worker.instance}-with")
        assert (log.count(TOOK_OVER), others.count(TOOK_OVER)) == (1, 0)


def _owned_in(found: dict[int, str], worker: Worker) -> list[int]:
    return [partition for partition, url in found.items() if url == worker.url]


def _open_one_in_each(worker: Worker, partitions: range | list[int], prefix: str) -> None:
    """Opens an account in each partition; while the answer is 503, it is sent again with the same key."""
    for partition in partitions:
        url = f"{worker.url}/accounts/{next(keys_in(partition, prefix))}"
        post = partial(httpx.post, url, headers={"Idempotency-Key": prefix}, timeout=60.0)
        answer = eventually(post, lambda found: found.status_code not in (202, 503), DEADLINE_S)
        assert answer.status_code == 201, answer.text
