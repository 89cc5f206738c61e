"""Workers of a release with one more table, started one by one in the place of older ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from shared.dev.worker import Worker
from shared.kafka.provision import provision
from tests.conftest import accounts_stack
from tests.faults import broken
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.long]


def test_they_stop_beside_an_older_one_and_say_why_and_work_without(tmp_path: Path) -> None:
    with accounts_stack(tmp_path, workers=3) as stack:
        provision([broken.WITH_TOTALS], stack.settings)
        for worker in stack.workers:
            worker.stop()
            worker.command = broken.command(broken.keeps_totals)
            worker.spawn()
            eventually(partial(_has_settled, worker))
        ended = [worker for worker in stack.workers if worker.exit_code is not None]
        assert ended
        for worker in ended:
            assert "was assigned without accounts-totals-changelog" in worker.log.read_text()
            worker.spawn()
        for worker in stack.workers:
            worker.await_ready()


def _has_settled(worker: Worker) -> bool:
    return worker.exit_code is not None or worker.is_ready()
