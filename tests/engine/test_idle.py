"""A worker without a partition says that it is idle, is shown as idle, and is ready to take over."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.dev.stack import Stack
from shared.dev.status import Line, status
from shared.dev.worker import Worker
from tests.accounts.topology import TOPOLOGY
from tests.conftest import WORKER_SETTINGS
from tests.faults import broken
from tests.waiting import eventually

pytestmark = pytest.mark.broker

IDLE = '"event": "idle: more workers than partitions"'


@pytest.mark.long  # in short, the third worker of tests/console
def test_a_surplus_worker_says_so_once_and_takes_over_when_it_is_needed(tmp_path: Path) -> None:
    only = broken.WITH_ONE_PARTITION
    with Stack(
        tmp_path,
        {TOPOLOGY.service: 2},
        settings=WORKER_SETTINGS,
        topologies=[only],
        command=lambda _: broken.command(broken.has_one_partition),
    ) as stack:
        owner, idle = sorted(stack.workers, key=_is_idle)
        assert [_is_idle(owner), _is_idle(idle)] == [False, True]
        assert eventually(lambda: _told(idle)) == 1  # it is idle before it says so
        another = stack.add_worker(TOPOLOGY.service)
        for worker in stack.workers:
            members = eventually(lambda url=worker.url: _cluster(url)["members"], _all_ready)  # type: ignore[misc]
            assert {each["url"]: each["idle"] for each in members} == {
                owner.url: False,
                idle.url: True,
                another.url: True,
            }
        assert [eventually(partial(_told, each)) for each in (idle, another)] == [1, 1]
        lines = status([only], {TOPOLOGY.service: stack.urls(TOPOLOGY.service)}, stack.settings)[TOPOLOGY.service]
        assert {
            Line("worker", f"{owner.url}  ready, partitions 0"),
            Line("worker", f"{idle.url}  idle, no partition"),
            Line("worker", f"{another.url}  idle, no partition"),
        } <= set(lines)
        owner.stop()
        for worker in (idle, another):
            url = f"{worker.url}/accounts/of-{worker.instance}"
            post = partial(httpx.post, url, headers={"Idempotency-Key": "taken-over"}, timeout=60.0)
            eventually(post, lambda answer: answer.status_code == 201)
        assert sorted(map(_is_idle, (idle, another))) == [False, True]


def _cluster(url: str) -> dict[str, Any]:
    return dict(httpx.get(f"{url}/cluster", timeout=30.0).json())


def _all_ready(members: list[dict[str, Any]]) -> bool:
    return len(members) == 3 and all(member["ready"] for member in members)


def _is_idle(worker: Worker) -> bool:
    """Once it has taken over what its group gave it."""
    worker.await_ready()
    return bool(_cluster(worker.url)["idle"])


def _told(worker: Worker) -> int:
    return worker.log.read_text().count(IDLE)
