"""What a worker may meet when it takes partitions over: another topic, or a coordinator that keeps what was aborted."""

from __future__ import annotations

import asyncio
import random

import pytest

from services.accounts.topology import COMMANDS
from shared.kafka.provision import TopologyMismatch
from shared.streams import engine as engine_module
from tests.engine.test_next_version import NEXT, OPEN, TOPICS, Worker, events
from tests.faults.simulated import Broker


@pytest.fixture
def broker() -> Broker:
    return Broker(TOPICS, NEXT.partitions, random.Random(1), NEXT.group)


def test_a_worker_clears_what_is_taken_for_its_own_and_goes_on(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator keeps aborted offsets as pending, so nobody may read them."""
    monkeypatch.setattr(engine_module, "RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(engine_module, "POLL_WAIT_MS", 0)
    broker.append(COMMANDS.name, OPEN, None)
    broker.stale = {"w"}
    asyncio.run(asyncio.wait_for(Worker(broker, "w", 0, 1).work(), 20))
    assert events(broker) == 1


def test_partitions_that_were_added_meanwhile_stop_it(broker: Broker) -> None:
    """Their keys have rows elsewhere."""
    fix = r"commands\.v1: partitions is 3, declared as 2; fix: move to the topic's next version"
    with pytest.raises(TopologyMismatch, match=fix):
        asyncio.run(Worker(broker, "w", 0, 2).start())
