"""A worker with a fault: `python -m tests.faults.broken FAULT,… ARGUMENTS OF FAUST`.

Some faults hit a sound engine, which has to notice; others remove one of its guards, and a scenario has to notice.
"""

from __future__ import annotations

import asyncio
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import structlog
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import GroupLoadInProgressError
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from faust.assignor.partition_assignor import PartitionAssignor
from faust.cli.faust import cli

from shared.dev.worker import faust_command
from shared.engine import engine as engine_module
from shared.engine import guards
from shared.engine.batch import Batch
from shared.engine.committer import Committer
from shared.engine.engine import Engine
from shared.engine.guards import GapGuard
from shared.group import internals
from shared.kafka.reader import Reader
from shared.kafka.transactions import Record, TransactionAborted, TransactionalProducer
from shared.runtime import failpoints
from shared.runtime.clock import elapsed_s
from shared.runtime.positions import Place
from shared.tables import store
from shared.tables.replicas import Replica, Replicas
from tests.accounts import service
from tests.accounts.topology import COMMANDS, TOPOLOGY

log = structlog.get_logger(__name__)

FULL_BYTES = 32 * 1024
FROZEN_S = 6.0  # the session of the workers in tests
LOADING = GroupLoadInProgressError.errno
LOADING_ANSWERS = "answered by a coordinator that loads"
WITH_ONE_PARTITION = replace(TOPOLOGY, partitions=1)


def has_one_partition() -> None:
    """So a second worker is one too many."""
    service.SERVICE = replace(service.SERVICE, topology=WITH_ONE_PARTITION)


def assigns_before_it_knows_changelogs() -> None:
    """Until it has assigned once, the brokers that it asks lag behind the one that made its changelogs."""
    update, assign = ClusterMetadata.update_metadata, PartitionAssignor.assign
    assigned = False

    def updated(self: ClusterMetadata, metadata: Any) -> None:
        if not assigned:
            metadata.topics = [each for each in metadata.topics if not each[1].endswith("-changelog")]
        update(self, metadata)

    def assigns(self: PartitionAssignor, *args: Any) -> Any:
        nonlocal assigned
        assigned = True
        return assign(self, *args)

    ClusterMetadata.update_metadata = updated
    PartitionAssignor.assign = assigns  # type: ignore[method-assign, assignment]


def drops_first_batches() -> None:
    """The first batch of each partition after an assignment is fetched and lost; it may hold markers only."""
    assign, getmany = Reader.assign, Reader.getmany
    asked: dict[Place, int] = {}

    def assigned(self: Reader, positions: Mapping[Place, int]) -> None:
        asked.clear()
        asked.update(positions)
        assign(self, positions)

    async def some(self: Reader, *arguments: Any, **options: Any) -> Any:
        fetched = await getmany(self, *arguments, **options)
        first = {place for place, offset in asked.items() if self.position(place) != offset}
        for place in first:
            del asked[place]
        return {place: records for place, records in fetched.items() if place not in first}

    Reader.assign, Reader.getmany = assigned, some  # type: ignore[method-assign]


def reads_no_commands_of_partition_0() -> None:
    """They keep arriving, and the reader returns none of them."""
    getmany = Reader.getmany

    async def others(self: Reader, *arguments: Any, **options: Any) -> Any:
        self.pause(*self.assignment() & {(COMMANDS.name, 0)})
        return await getmany(self, *arguments, **options)

    Reader.getmany = others  # type: ignore[method-assign]
    guards.STANDSTILL_S = 10.0  # any shorter, and other partitions stand still too on a busy machine
    engine_module.WATCH_S = 0.5


def watches_often() -> None:
    """A partition that stands is then told, and would end the worker, within seconds."""
    guards.STANDSTILL_S = 5.0
    guards.TOLD_S = 1.0
    engine_module.WATCH_S = 0.5


def fetches_seldom() -> None:
    """Each fetch then brings records of many partitions."""
    getmany = Reader.getmany

    async def late(self: Reader, *arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0.1)
        return await getmany(self, *arguments, **options)

    Reader.getmany = late  # type: ignore[method-assign]


def fetches_little() -> None:
    """A restore then takes long."""
    getmany = Reader.getmany

    async def few(self: Reader, timeout_ms: int, max_records: int) -> Any:
        await asyncio.sleep(0.1)
        return await getmany(self, timeout_ms, min(max_records, 20))

    Reader.getmany = few  # type: ignore[method-assign]


def aborts_every_tenth_batch() -> None:
    """As if its records could not be delivered in time."""
    times = count(1)

    def reached(step: str) -> None:
        if step == "before_offsets" and next(times) % 10 == 0:
            raise TransactionAborted("injected")

    failpoints.reached = reached


def fills_its_disk() -> None:
    """No file of this process may grow any more; its output goes through another process."""
    sys.stdout.flush()
    scribe = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert scribe.stdin
    for stream in (1, 2):
        os.dup2(scribe.stdin.fileno(), stream)
    store.WRITE_BUFFER_BYTES = 4 * FULL_BYTES
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))


def believes_any_beginning() -> None:
    GapGuard.must_reread = lambda *_: False  # type: ignore[method-assign]


def commits_in_no_generation() -> None:
    """Like a consumer without a group: the broker then checks nothing."""

    def unfenced(group: str, *_: object) -> bytes:
        return b"CGMDv2:" + struct.pack("<i", -1) + group.encode() + b"\0\0\1"

    internals.group_metadata = unfenced  # type: ignore[attr-defined,assignment]


def commits_offsets_before_its_records() -> None:
    """The records are still queued when the generation is checked."""
    send, commit = TransactionalProducer.send, TransactionalProducer.commit
    reached = failpoints.reached
    kept: list[Sequence[Record]] = []

    def late(self: TransactionalProducer, records: Sequence[Record]) -> None:
        kept.append(records)

    def torn(self: TransactionalProducer, offsets: Any, member: bytes) -> Any:
        failpoints.reached = lambda step: None
        send(self, [])
        commit(self, offsets, member)
        failpoints.reached = reached
        send(self, kept.pop())
        return commit(self, {}, member)

    TransactionalProducer.send, TransactionalProducer.commit = late, torn  # type: ignore[method-assign]


def stores_before_it_commits() -> None:
    send = Committer._send

    def early(self: Committer, batch: Batch) -> Any:
        for (_, partition), rows in batch.rows.items():
            rows.store.apply(partition, rows.encoded(), None)
        return send(self, batch)

    Committer._send = early  # type: ignore[method-assign]


def decides_before_it_is_restored() -> None:
    opened = Replicas._open

    def at_once(self: Replicas, *arguments: Any) -> Replica:
        replica = opened(self, *arguments)
        replica.restored = True
        return replica

    Replicas._open = at_once  # type: ignore[assignment,method-assign]


def counts_what_it_fetched_as_done() -> None:
    flush = Engine._flush

    async def ahead(self: Engine) -> None:
        for place in self.holdings.sources if self._filling.batch else ():
            self._filling.batch.offsets[place] = self.reading.position(place)
        await flush(self)

    Engine._flush = ahead  # type: ignore[method-assign]


def wakes_to_a_loading_coordinator() -> None:
    """Once this process was frozen for longer than its session, its group's coordinator still loads its log: it answers
    heartbeats of anybody, and refuses all else.
    """
    send = AIOKafkaClient.send
    heard, loads = elapsed_s(), False
    codes = {HeartbeatRequest: 0, JoinGroupRequest: LOADING, SyncGroupRequest: LOADING}

    async def answered(self: AIOKafkaClient, node: int, request: Any, **options: Any) -> Any:
        nonlocal heard, loads
        before, heard = heard, elapsed_s()
        loads = loads or heard - before > FROZEN_S
        if loads and isinstance(request, OffsetCommitRequest):
            return SimpleNamespace(
                topics=[(topic, [(place[0], LOADING) for place in places]) for topic, places in request._topics]
            )
        if loads and type(request) in codes:
            log.warning(LOADING_ANSWERS)
            return SimpleNamespace(error_code=codes[type(request)])
        return await send(self, node, request, **options)

    AIOKafkaClient.send = answered


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        assigns_before_it_knows_changelogs,
        drops_first_batches,
        reads_no_commands_of_partition_0,
        watches_often,
        fetches_seldom,
        fetches_little,
        aborts_every_tenth_batch,
        fills_its_disk,
        believes_any_beginning,
        commits_in_no_generation,
        commits_offsets_before_its_records,
        stores_before_it_commits,
        decides_before_it_is_restored,
        counts_what_it_fetched_as_done,
        wakes_to_a_loading_coordinator,
        has_one_partition,
    )
}


def command(*faults: Callable[[], None]) -> list[str]:
    """The command that runs a worker of accounts with these faults."""
    names = ",".join(fault.__name__ for fault in faults)
    python, _, _, *options = faust_command(TOPOLOGY.service, "tests")
    return [python, "-m", "tests.faults.broken", names, *options]


if __name__ == "__main__":
    for name in sys.argv.pop(1).split(","):
        FAULTS[name]()
    cli()
