"""A table's committed changes as they happen, read from its changelog by any worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from shared.changes import Change, Feed
from shared.es.errors import NotReady
from shared.es.row import RowCodec

log = structlog.get_logger(__name__)

POLL_MS = 1_000
POLL_RECORDS = 500


@asynccontextmanager
async def read_changes(
    new_consumer: Callable[[], AIOKafkaConsumer], changelog: str, codec: RowCodec[Any], after: Mapping[int, int | None]
) -> AsyncIterator[Feed]:
    """All changes committed behind the offsets `after`, by partition; None starts at the present end.

    Raises NotReady while the brokers can't be read, and LookupError for an offset the changelog never had.
    """
    reader = new_consumer()
    partitions = {partition: TopicPartition(changelog, partition) for partition in after}
    try:
        await reader.start()
        reader.assign(list(partitions.values()))
        # the last stable offsets, for the reader is read_committed
        found = await reader.end_offsets(list(partitions.values()))
        ends = {partition: found[tp] for partition, tp in partitions.items()}
        begins = {p: ends[p] - 1 if offset is None else offset for p, offset in after.items()}
        if beyond := [p for p in begins if begins[p] >= ends[p]]:
            raise LookupError(f"{changelog} has no such offset in partitions {beyond}")
        starts = await reader.beginning_offsets(list(partitions.values()))
        for partition, tp in partitions.items():
            reader.seek(tp, max(begins[partition] + 1, starts[tp]))  # a reprocessed view has no older changes
        yield Feed(begins, _batches(reader, codec))
    except KafkaError as failure:
        raise NotReady(f"the changelog {changelog} can't be read now: {type(failure).__name__}") from failure
    finally:
        await reader.stop()


async def _batches(reader: AIOKafkaConsumer, codec: RowCodec[Any]) -> AsyncIterator[Sequence[Change]]:
    """Batches of changes, until the changelog can't be read any more."""
    while True:
        try:
            fetched = await reader.getmany(timeout_ms=POLL_MS, max_records=POLL_RECORDS)
        except KafkaError as failure:
            log.warning("a stream of changes ends: its changelog can't be read", reason=str(failure))
            return
        changes = [
            Change(record.partition, record.offset, record.key, codec.decode(record.value) if record.value else None)
            for records in fetched.values()
            for record in records
        ]
        if changes:
            yield changes
