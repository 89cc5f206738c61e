"""Single records of a topic, by their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from shared.domain.errors import NotReady
from shared.domain.history_index import LogBegins
from shared.runtime.positions import Place

FETCH_BYTES = 64 * 1024  # the broker sends at least a whole batch, of which one record is wanted
NEIGHBOURS = 200  # records that come along with the wanted one; the next wanted one may be among them
TIMEOUT_S = 2.5  # less than a peer has to answer
LONG_MS = 3_600_000  # longer than any caller waits


async def read_at(
    new_consumer: Callable[[int], AIOKafkaConsumer], place: Place, offsets: Sequence[int]
) -> Sequence[bytes]:
    """The values at the ascending offsets, all of which were committed.

    Raises LogBegins when some were removed since, and NotReady while the brokers can't be read.
    """
    if not offsets:
        return []
    reader = new_consumer(FETCH_BYTES)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await reader.start()
            return await _values(reader, place, offsets)
    except (KafkaError, TimeoutError) as failure:
        raise NotReady(f"{place.topic} can't be read now: {type(failure).__name__}") from failure
    finally:
        await reader.stop()


async def _values(reader: AIOKafkaConsumer, place: Place, offsets: Sequence[int]) -> Sequence[bytes]:
    try:
        found = {record.offset: record.value async for record in records_at(reader, place, offsets)}
    except OffsetOutOfRangeError:
        (start,) = (await reader.beginning_offsets(reader.assignment())).values()
        raise LogBegins(start) from None
    return [found[offset] for offset in offsets]


async def records_at(reader: AIOKafkaConsumer, place: Place, offsets: Sequence[int]) -> AsyncIterator[ConsumerRecord]:
    """The records at the ascending offsets, each as soon as it arrives. The caller sets the time-out for all of them.

    Raises OffsetOutOfRangeError at the first that was removed.
    """
    missing, tp = set(offsets), TopicPartition(*place)
    reader.assign([tp])
    for offset in offsets:
        if offset not in missing:
            continue
        reader.seek(tp, offset)
        fetched = await reader.getmany(tp, timeout_ms=LONG_MS, max_records=NEIGHBOURS)
        for record in fetched.get(tp, ()):
            if record.offset in missing:
                missing.remove(record.offset)
                yield record
