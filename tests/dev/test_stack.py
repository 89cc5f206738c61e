"""A stack starts, grows and ends as a whole, with a real broker and fake workers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from shared.dev.processes import children
from shared.dev.stack import Stack
from shared.dev.stages import StageFailed
from shared.operations.provision import found_topics
from shared.runtime.settings import Settings
from shared.topology.topics import Topic, Topology

TOPOLOGY = Topology("ready", (Topic("ready.commands.v1"),), partitions=2)


@pytest.fixture
def new_stack(tmp_path: Path, fake_command: Callable[[str], list[str]]) -> Callable[..., Stack]:
    def make(**services: int) -> Stack:
        return Stack(tmp_path, services, settings=Settings(), topologies=[TOPOLOGY], command=fake_command)

    return make


@pytest.mark.long  # in short, `down`, in test_up
@pytest.mark.broker
def test_a_stack_ends_every_process_it_started_and_keeps_its_data(new_stack: Callable[..., Stack]) -> None:
    before = children()
    with new_stack(ready=2) as stack:
        assert [worker.is_ready() for worker in stack.workers] == [True, True]
        added = stack.add_worker("ready")
        assert stack.urls("ready") == [worker.url for worker in stack.workers]
        assert len(set(stack.urls("ready"))) == 3
        assert added.name == "ready-3"
        assert {file.name for file in stack.logs.iterdir()} >= {"kafka-1.log", "ready-1.log", "ready-3.log"}
        assert len(children()) == len(before) + 4
        bootstrap = stack.bootstrap
    assert children() == before
    again = new_stack()
    again.start_brokers()
    assert again.bootstrap == bootstrap
    assert found_topics(["ready.commands.v1"], bootstrap)["ready.commands.v1"].partitions == 2
    assert again.provision() == []
    again.stop()


@pytest.mark.broker
def test_when_a_worker_fails_at_the_start_nothing_is_left_running(new_stack: Callable[..., Stack]) -> None:
    before = children()
    with pytest.raises(StageFailed, match="crashing-1 ended with 1"):
        new_stack(ready=1, crashing=1).start()
    assert children() == before
