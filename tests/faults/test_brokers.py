"""The broker is killed; what was acknowledged stays, and nothing is repeated."""

from __future__ import annotations

import pytest

from shared.dev.stack import Stack
from tests.faults.harness import Scenario

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

SOME = 2_000  # records at the outputs


def test_the_only_broker_is_killed_and_comes_back(pair: Stack, seed: int) -> None:
    with Scenario(pair, seed) as scenario:
        scenario.load_for(SOME)
        pair.kafka.kill(1)
        pair.kafka.restart(1)
        scenario.load_for(2 * SOME)
