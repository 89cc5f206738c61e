"""A guard of the engine is taken away, and a scenario on real processes has to be violated by that."""

from __future__ import annotations

import pytest

from shared.dev.stack import Stack
from tests.faults import broken, test_workers
from tests.faults.harness import Violated

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(900)]


def test_lost_first_batches_are_missed_without_their_guard(pair: Stack, seed: int) -> None:
    for worker in pair.workers[:2]:
        worker.kill()
        worker.command = broken.command(broken.believes_any_beginning, broken.drops_first_batches)
        worker.start()
    with pytest.raises(Violated):
        test_workers.test_restarted_one_after_the_other(pair, seed)
