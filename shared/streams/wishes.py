"""What operators want done with parked records: handled again, from the log they still lie in, or discarded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from shared.parking import Failure, Parked, Wish
from shared.streams.log import records_at
from shared.streams.parking import Parking
from shared.streams.processors import Processor

log = structlog.get_logger(__name__)

REREAD_S = 5.0

Attempt = Callable[[Processor, ConsumerRecord], Failure | None]
"""Handles one record in the batch that is being filled."""


class Wishes:
    def __init__(self, processors: Mapping[str, Sequence[Processor]], consumer: Callable[[], AIOKafkaConsumer]) -> None:
        """processors: by their source's name."""
        self._processors = processors
        self._new_consumer = consumer

    async def fulfil(self, wish: Wish, place: Parking, attempt: Attempt) -> None:
        parked = place.get(wish.id)
        if parked is None:
            return  # done before
        if wish.action == "retry":
            place.keep(wish.id, self._retried(parked, await self._reread(parked), attempt))
        elif wish.offset == parked.offset:
            log.warning("a parked record is discarded", id=wish.id, offset=wish.offset, reason=wish.reason)
            place.keep(wish.id, parked.without_first())

    def _retried(self, parked: Parked, records: Mapping[int, ConsumerRecord], attempt: Attempt) -> Parked | None:
        """What stays parked when all are handled in order, up to the first that fails again."""
        processor = next((p for p in self._processors[parked.topic] if p.name == parked.processor), None)
        left: Parked | None = parked
        while left is not None:
            record = records.get(left.offset)
            if processor is None or record is None:
                what = "the processor" if processor is None else "the record"
                return left.failed(Failure("gone", f"{what} is no longer there"))
            failure = attempt(processor, record)
            if failure is not None:
                return left.failed(failure)
            left = left.without_first()
        return None

    async def _reread(self, parked: Parked) -> dict[int, ConsumerRecord]:
        """The parked records from the log, by offset; those that retention removed are missing."""
        tp = TopicPartition(parked.topic, parked.partition)
        found: dict[int, ConsumerRecord] = {}
        reader = self._new_consumer()
        await reader.start()
        try:
            reader.assign([tp])
            async for record in records_at(reader, tp, parked.offsets, REREAD_S):
                found[record.offset] = record
        except OffsetOutOfRangeError as error:
            log.warning("parked records are no longer in the log", topic=tp.topic, reason=str(error))
        finally:
            await reader.stop()
        return found
