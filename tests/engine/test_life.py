"""Workers come and go under load; every row, change and event is compared with the truth recomputed from the input."""

from __future__ import annotations

import pytest

from shared.dev.stack import Stack
from tests.faults.harness import DEADLINE_S, Scenario, observe
from tests.faults.run import new_seed

pytestmark = pytest.mark.broker

ENOUGH = {"least_commands": 3_000, "least_events": 2_000, "per_s": 500}
RECORDS = 1_000  # output records, in each phase of a test


@pytest.mark.long  # each of the two restarts in the test below, too
def test_a_restart_changes_nothing(stack: Stack) -> None:
    with Scenario(stack, new_seed(), **ENOUGH) as scenario:
        scenario.load_for(RECORDS)
        for worker in scenario.workers:
            assert worker.stop(DEADLINE_S)
            worker.start()
        scenario.load_for(RECORDS)


@pytest.mark.long
def test_a_kill_under_load_changes_nothing(stack: Stack) -> None:
    with Scenario(stack, new_seed(), **ENOUGH) as scenario:
        killed, other = scenario.workers
        scenario.load_for(RECORDS)
        killed.kill()
        observe(lambda: len(scenario.owned(other)) == 8, "the survivor owns everything")
        scenario.load_for(RECORDS)
        killed.start()


@pytest.mark.long  # in short, workers that come and go under load, in tests/faults
def test_one_worker_two_and_one_again_change_nothing(stack: Stack) -> None:
    with Scenario(stack, new_seed(), **ENOUGH) as scenario:
        one, other = scenario.workers
        assert other.stop(DEADLINE_S)
        scenario.load_for(RECORDS)
        other.start()
        observe(lambda: len(scenario.owned(other)) == 4, "the second worker owns half")
        scenario.load_for(RECORDS)
        assert one.stop(DEADLINE_S)
        observe(lambda: len(scenario.owned(other)) == 8, "the last worker owns everything")
        scenario.load_for(RECORDS)
        one.start()
