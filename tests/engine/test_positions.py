"""The position that a caller is answered includes the events of its command, whatever else the worker reads."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping

import pytest

from shared.kafka.murmur2 import partition_of
from shared.runtime.positions import Committed, Place
from tests.accounts.topology import COMMANDS, EVENTS
from tests.engine.test_next_version import AGGREGATE, COPYING, NEXT, OPEN, ROWS_ONLY, TOPICS, Worker
from tests.faults.load import command
from tests.faults.simulated import Broker

pytestmark = pytest.mark.usefixtures("no_waiting")

PLACE = Place(EVENTS.name, partition_of(b"a-1", NEXT.partitions))


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_reads_its_own_events_answers_with_those_it_writes(seed: int) -> None:
    """It handles earlier ones in the same batch, for its history."""
    broker = Broker(TOPICS, NEXT.partitions, random.Random(seed), NEXT.group)
    worker = Worker(broker, "w", 0, 1, topology=ROWS_ONLY)

    async def work() -> dict[str, asyncio.Future[Committed]]:
        await worker.start()
        expected = {}
        for number in range(40):
            id_, kind, data = f"c{number}", "account.charge" if number else "account.open", {"amount_cents": 1}
            expected[id_] = worker.engine.holdings.answers.expect("a-1", id_, 0)
            broker.append(COMMANDS.name, (b"a-1", command("a-1", id_, kind, data if number else {})), None)
            await worker.engine.step()
        await worker.go_on()
        return expected

    answers = asyncio.run(work())
    written = _written(broker)
    assert written.keys() == answers.keys()
    assert {id_: answer.result().positions[PLACE] >= written[id_] for id_, answer in answers.items()} == dict.fromkeys(
        written, True
    )


def test_a_repeat_is_answered_with_the_position_of_the_events_too() -> None:
    """Also by the next owner, which wrote nothing itself."""
    broker = Broker(TOPICS, NEXT.partitions, random.Random(1), NEXT.group)

    async def ask(worker: Worker) -> int:
        answer = worker.engine.holdings.answers.expect("a-1", "c1", 0)
        broker.append(COMMANDS.name, OPEN, None)
        await worker.go_on()
        return answer.result().positions[PLACE]

    async def work() -> list[int]:
        answers = []
        for name in ("first", "next"):
            worker = Worker(broker, name, 0, 1, topology=COPYING, processors=[AGGREGATE])
            await worker.start()
            answers += [await ask(worker), await ask(worker)]
            assert worker.engine.holdings.event_offsets(PLACE.number)[PLACE] >= answers[0]
        return answers

    answers = asyncio.run(work())
    assert min(answers) >= _written(broker)["c1"]


def _written(broker: Broker) -> Mapping[str, int]:
    """The offset of the last event of each command."""
    return {json.loads(read.value or b"")["causation_id"]: read.offset for read in broker.visible(PLACE, 0)}
