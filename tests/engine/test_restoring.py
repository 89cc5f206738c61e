"""A long restore keeps nobody waiting while another worker has the rows, and tells how far it is and how fast."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.dev.status import status
from shared.dev.worker import Worker
from tests.accounts.topology import TOPOLOGY
from tests.conftest import accounts_stack
from tests.faults import broken
from tests.faults.load import Load, new_names
from tests.faults.run import new_seed
from tests.faults.transfers import Transfers
from tests.queries.cluster import owned_by
from tests.waiting import eventually

pytestmark = pytest.mark.broker

ENOUGH = 1_500
DEADLINE_S = 180.0


@pytest.mark.long  # in short, a short restore, after nearly every other kill
def test_a_long_restore_tells_its_pace_and_its_end(tmp_path: Path) -> None:
    with accounts_stack(tmp_path, workers=1) as stack:
        (worker,) = stack.workers
        transfers = Transfers(new_names("t", 100), arrived=[])
        load = Load(stack.bootstrap, new_seed(), accounts=1_000, per_s=1_000, transfers=transfers)
        load.start()
        eventually(lambda: len(load.acknowledged), lambda sent: sent >= ENOUGH, DEADLINE_S)
        load.end()
        eventually(lambda: _cluster(worker), _has_handled_everything, DEADLINE_S)
        worker.stop()
        shutil.rmtree(stack.settings.data_dir / worker.name)
        worker.command = broken.command(broken.fetches_little)
        worker.spawn()
        early = eventually(lambda: _restoring(worker), _is_told, DEADLINE_S)
        shown = eventually(
            lambda: status([TOPOLOGY], {TOPOLOGY.service: [worker.url]}, stack.settings)[TOPOLOGY.service],
            lambda lines: any("changelog records to go, about " in line.text for line in lines),
        )
        assert [line.wrong for line in shown if line.about == "restoring"] == [True]
        eventually(lambda: _restoring(worker), lambda later: _left(later) < _left(early), DEADLINE_S)
        worker.await_ready(DEADLINE_S)
        assert not any(_restoring(worker))
        lines = [json.loads(line) for line in worker.log.read_text().splitlines() if '"event": "restoring"' in line]
        assert all(later["to_restore"] <= earlier["to_restore"] for earlier, later in pairwise(lines))
        assert lines[-1]["to_restore"] < lines[0]["to_restore"]
        assert any(line["per_s"] and line["left_s"] for line in lines)


def test_a_worker_without_its_disk_owns_partitions_once_it_has_restored_them(tmp_path: Path) -> None:
    with accounts_stack(tmp_path, workers=2, recovery_lag=10) as stack:
        first, second = stack.workers
        ids = [f"kept-{number}" for number in range(200)]
        with httpx.Client(base_url=first.url, timeout=60.0) as http:
            opened = [http.post(f"/accounts/{id}", headers={"Idempotency-Key": "open"}) for id in ids]
            assert {answer.status_code for answer in opened} == {201}
            second.stop()
            shutil.rmtree(stack.settings.data_dir / second.name)
            second.command = broken.command(broken.fetches_little)
            second.spawn()
            eventually(lambda: _restoring(second), bool, DEADLINE_S)
            found = {200}
            while _restoring(second):
                assert found == {200}
                found = {http.get(f"/accounts/{id}").status_code for id in ids[::20]}
        second.await_ready(DEADLINE_S)
        assert owned_by(stack, second)
        lines = [json.loads(line) for line in second.log.read_text().splitlines() if '"event": "took over"' in line]
        assert max(line["to_restore"] for line in lines) < 150, "each partition has more than that"


def _cluster(worker: Worker) -> dict[str, Any]:
    try:
        return dict(httpx.get(f"{worker.url}/cluster", timeout=30.0).json())
    except httpx.HTTPError:
        return {"replicas": []}  # it has just been started


def _has_handled_everything(cluster: dict[str, Any]) -> bool:
    return cluster["handled"] > ENOUGH and not any(source["lag_records"] for source in cluster["sources"])


def _restoring(worker: Worker) -> list[dict[str, Any]]:
    """The partitions that are not restored yet."""
    return [each for each in _cluster(worker)["replicas"] if not each["restored"]]


def _is_told(replicas: list[dict[str, Any]]) -> bool:
    return any(each["restored_per_s"] and each["left_s"] for each in replicas)


def _left(replicas: list[dict[str, Any]]) -> int:
    return sum(each["to_restore"] for each in replicas)
