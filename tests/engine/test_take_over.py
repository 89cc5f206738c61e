"""What a worker may meet when it takes over partitions: more of them, or a coordinator that keeps aborted offsets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, cast

import pytest

from shared.engine.wiring import wired
from shared.kafka.murmur2 import partition_of
from shared.kafka.offsets import Position
from shared.operations.provision import TopologyMismatch
from shared.runtime.positions import Place
from tests.accounts.topology import COMMANDS
from tests.engine.test_next_version import AGGREGATE, COPIED, COPYING, NEXT, OPEN, REKEY, TOPICS, Worker, events
from tests.faults.load import command
from tests.faults.simulated import Broker, FakeOffsets

pytestmark = pytest.mark.usefixtures("no_waiting", "no_lag")


@pytest.fixture
def broker() -> Broker:
    return Broker(TOPICS, NEXT.partitions, random.Random(1), NEXT.group)


def test_a_worker_clears_aborted_offsets_kept_under_its_id_and_goes_on(broker: Broker) -> None:
    """The coordinator keeps them as pending, so nobody can read the group's positions."""
    broker.append(COMMANDS.name, OPEN, None)
    broker.stale = {"w": {Place(COMMANDS.name, 0): 1, Place(COMMANDS.name, 1): 1}}
    asyncio.run(asyncio.wait_for(Worker(broker, "w", 0, 1).work(), 20))
    assert events(broker) == 1


def test_a_restarted_worker_commits_nothing_that_was_aborted_under_its_id(broker: Broker) -> None:
    """It may get other partitions, whose positions it can read, while the owner of its former ones cannot."""
    broker.append(COMMANDS.name, OPEN, None)
    former = partition_of(OPEN[0] or b"", NEXT.partitions)
    broker.stale = {"w": {Place(COMMANDS.name, former): 1}}
    asyncio.run(Worker(broker, "w", 1 - former).work())
    asyncio.run(Worker(broker, "v", former).work())
    assert events(broker) == 1


def test_an_idle_worker_clears_what_was_aborted_under_its_id(broker: Broker) -> None:
    """The owner of its former partitions could not read their positions for as long as it lives."""
    broker.append(COMMANDS.name, OPEN, None)
    broker.stale = {"w": {Place(COMMANDS.name, 0): 1, Place(COMMANDS.name, 1): 1}}
    asyncio.run(Worker(broker, "w").start())
    asyncio.run(asyncio.wait_for(Worker(broker, "v", 0, 1).work(), 20))
    assert events(broker) == 1


class FromThePast(FakeOffsets):
    """The first answers about positions come from a coordinator that was superseded before `past`."""

    def __init__(self, broker: Broker, past: Broker, answers: int) -> None:
        super().__init__(broker)
        self._past, self._answers = past, answers

    def positions(self, group: str, places: Iterable[Place]) -> dict[Place, Position]:
        self._answers -= 1
        return FakeOffsets(self._past if self._answers >= 0 else self.broker).positions(group, places)


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_positions_from_before_the_worker_joined_are_asked_again(broker: Broker, answers: int) -> None:
    """With them, what a predecessor has copied would be copied again: copies have no row that remembers them."""
    broker.append(COMMANDS.name, OPEN, None)
    past = deepcopy(broker)
    working = {"topology": COPYING, "processors": wired(COPYING, [AGGREGATE, REKEY])}
    asyncio.run(Worker(broker, "w", 0, 1, **working).work())  # type: ignore[arg-type]
    past.committed = dict.fromkeys(broker.committed, 0)
    next_owner = Worker(broker, "v", 0, 1, **working)  # type: ignore[arg-type]
    next_owner.engine._take_over._offsets = cast(Any, FromThePast(broker, past, answers))
    asyncio.run(next_owner.work())
    assert (events(broker), events(broker, COPIED)) == (1, 1)


class OldEnds(FakeOffsets):
    """Ends of changelogs are told by brokers that lead them no more."""

    def __init__(self, broker: Broker, ends: dict[Place, int]) -> None:
        super().__init__(broker)
        self._ends = ends

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        return {place: self._ends.get(place, end) for place, end in super().ends(places).items()}


@pytest.mark.parametrize("began", [True, False])
def test_rows_behind_the_end_that_a_broker_tells_are_restored(broker: Broker, began: bool) -> None:
    """Without them, a command that a predecessor has decided would be decided again.

    began: whether there were any when the broker lost the lead; of those of outcomes, there were none.
    """
    charge = b"a-1", command("a-1", "c2", "account.charge", {"amount_cents": 1})
    broker.append(COMMANDS.name, OPEN, None)
    first = Worker(broker, "first", 0, 1)
    asyncio.run(first.work())
    rows = [Place(NEXT.changelog(table).name, number) for table in NEXT.all_tables() for number in (0, 1)]
    last = {place: max((read.offset for read in broker.visible(place, 0)), default=-1) + 1 for place in rows}
    if not began:
        last = {place: 0 for place in rows if "outcomes" in place.topic}
    broker.append(COMMANDS.name, charge, None)
    asyncio.run(Worker(broker, "other", 0, 1).work())
    broker.append(COMMANDS.name, charge, None)
    first.engine.holdings.drop()
    first.engine._take_over._offsets = cast(Any, OldEnds(broker, last))
    asyncio.run(first.work())
    assert events(broker) == 2


def test_partitions_added_to_a_topic_stop_the_worker(broker: Broker) -> None:
    """The rows of their keys are in other partitions."""
    fix = r"commands\.v1: partitions is 3, declared as 2; fix: if the declaration was changed, declare 3 again"
    with pytest.raises(TopologyMismatch, match=fix):
        asyncio.run(Worker(broker, "w", 0, 2).start())
