"""A worker that has something wrong with it: `python -m tests.faults.broken FAULT,… ARGUMENTS OF FAUST`.

Some faults befall a sound engine, which has to notice; one takes a guard of the engine away.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.cli.faust import cli

from services.accounts.topology import COMMANDS
from shared.streams import engine as engine_module
from shared.streams import guards
from shared.streams.guards import Beginnings


def drops_first_batches() -> None:
    """The first batch of each partition after an assignment is fetched, and gets lost."""
    assign, getmany = AIOKafkaConsumer.assign, AIOKafkaConsumer.getmany
    drops: defaultdict[AIOKafkaConsumer, set[TopicPartition]] = defaultdict(set)

    def assigned(self: AIOKafkaConsumer, partitions: Collection[TopicPartition]) -> None:
        drops[self] = set(partitions)
        assign(self, partitions)

    async def some(self: AIOKafkaConsumer, *arguments: Any, **options: Any) -> Any:
        fetched = await getmany(self, *arguments, **options)
        lost = drops[self] & fetched.keys()
        drops[self] -= lost
        return {tp: records for tp, records in fetched.items() if tp not in lost}

    AIOKafkaConsumer.assign, AIOKafkaConsumer.getmany = assigned, some


def reads_no_commands_of_partition_0() -> None:
    """They keep coming, and its consumer brings none."""
    getmany = AIOKafkaConsumer.getmany

    async def others(self: AIOKafkaConsumer, *arguments: Any, **options: Any) -> Any:
        self.pause(*self.assignment() & {TopicPartition(COMMANDS.name, 0)})
        return await getmany(self, *arguments, **options)

    AIOKafkaConsumer.getmany = others
    guards.STANDSTILL_S = 3.0
    engine_module.WATCH_S = 0.5


def believes_any_beginning() -> None:
    """Its guard against lost first batches is gone."""
    Beginnings.must_reread = lambda *_: False  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        drops_first_batches,
        reads_no_commands_of_partition_0,
        believes_any_beginning,
    )
}


def command(*faults: Callable[[], None]) -> list[str]:
    """What runs a worker of accounts with these."""
    names = ",".join(fault.__name__ for fault in faults)
    options = ["-A", "services.accounts.app", "worker", "--without-web", "-l", "info"]
    return [sys.executable, "-m", "tests.faults.broken", names, *options]


if __name__ == "__main__":
    for name in sys.argv.pop(1).split(","):
        FAULTS[name]()
    cli()
