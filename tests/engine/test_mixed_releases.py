"""Workers that are given records without their rows: by a leader that doesn't know all topics yet, or an older one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from shared.operations.provision import provision
from tests.conftest import accounts_stack
from tests.faults import broken
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with accounts_stack(tmp_path_factory.mktemp("mixed"), workers=3) as stack:
        yield stack


def test_a_leader_gives_none_before_the_brokers_tell_it_of_all_topics(three: Stack) -> None:
    for worker in three.workers:
        worker.stop()
    leader, *_ = three.workers
    leader.command = broken.command(broken.assigns_before_it_knows_changelogs)
    for worker in three.workers:
        worker.start()
    assert "the brokers do not tell of all topics" in leader.log.read_text()


def test_they_stop_beside_an_older_one_and_say_why_and_work_without(three: Stack) -> None:
    provision([broken.WITH_TOTALS], three.settings)
    for worker in three.workers:
        worker.stop()
        worker.command = broken.command(broken.keeps_totals)
        worker.spawn()
        eventually(partial(_has_settled, worker))
    ended = [worker for worker in three.workers if worker.exit_code is not None]
    assert ended
    for worker in ended:
        assert "was assigned without accounts-totals-changelog" in worker.log.read_text()
        worker.spawn()
    for worker in three.workers:
        worker.await_ready()


def _has_settled(worker: Worker) -> bool:
    return worker.exit_code is not None or worker.is_ready()
