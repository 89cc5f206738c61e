"""What operators request of parked records: handle them again, as they lie or corrected, or discard them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from shared.engine.batch import FULL_RECORDS
from shared.engine.processors import Processor
from shared.engine.sources import Source
from shared.kafka.lookup import records_at
from shared.parking.parked import Failure, OperatorRequest, Parked, noted_id
from shared.parking.parking import Parking, place_id
from shared.runtime.positions import Place
from shared.topology.topics import Topology

log = structlog.get_logger(__name__)

REREAD_S = 5.0  # at most, for the engine does nothing else meanwhile
REREAD_BYTES = 16 * 1024 * 1024
TURN_RECORDS = 50  # tried without a break: about a millisecond's work

NOT_REACHED_AGAIN = Failure("unread", "its source is being read again and has not reached this record yet, retry later")
NO_MORE_AT_ONCE = Failure("unread", "no more are read at once, retry")

Attempt = Callable[[Processor, ConsumerRecord], Failure | None]
"""Handles one record in the batch that is being filled."""

Bury = Callable[[ConsumerRecord, str, str], None]
"""Writes a dead letter for the record, with the code and the reason of its failure."""


class OperatorRequests:
    def __init__(
        self,
        topology: Topology,
        sources: Mapping[Place, Source],
        new_consumer: Callable[[], AIOKafkaConsumer],
    ) -> None:
        self._topology = topology
        self._sources = sources
        self._new_consumer = new_consumer

    async def fulfil(
        self, request: OperatorRequest, parking: Parking, attempt: Attempt, bury: Bury, at_most: int = FULL_RECORDS
    ) -> OperatorRequest | None:
        """Do what the request asks for. Returns the note to write in the same transaction if a record was discarded.

        at_most: how many records a retry handles.
        """
        parked = parking.get(request.id)
        if parked is None:
            return None  # done before
        if request.action == "retry":
            await self._retry(request.id, parking, parked, attempt, bury, at_most)
        elif request.action == "correct" and request.offset == parked.offset and request.value is not None:
            told = {"id": request.id, "offset": request.offset, "reason": request.reason, "by": request.by}
            log.warning("a parked command is corrected", **told)
            await self._retry(request.id, parking, parked, attempt, bury, at_most, request.value.encode())
        elif request.action == "discard" and request.offset == parked.offset:
            return self._discard(request, parked, parking)
        return None

    def _discard(self, request: OperatorRequest, parked: Parked, parking: Parking) -> OperatorRequest | None:
        if self._topology.needs_every_record(parked.processor):
            log.warning(
                "an event can't be left out of a history, so it stays parked", id=request.id, offset=request.offset
            )
            return None
        source = self._source(parked)
        if source is not None and _will_be_reread(source, parked.offset):
            parking.keep(request.id, parked.failed(NOT_REACHED_AGAIN))
            return None
        log.warning(
            "a parked record is discarded", id=request.id, offset=request.offset, reason=request.reason, by=request.by
        )
        parking.drop(request.id, 1)
        # without `by`, so that a release before it still knows of the note
        return request.model_copy(update={"action": "dropped", "id": noted_id(request.id, parked.topic), "by": ""})

    async def _retry(
        self,
        id_: str,
        parking: Parking,
        parked: Parked,
        attempt: Attempt,
        bury: Bury,
        at_most: int,
        corrected: bytes | None = None,
    ) -> None:
        """Handle the parked records in order, up to the first that fails again and holds up those behind it.

        corrected: the value that the first one has instead.
        """
        source = self._source(parked)
        processors = source.processors if source else ()
        processor = next((each for each in processors if each.name == parked.processor), None)
        if source is None or processor is None:
            lacking = Failure("gone", f"{parked.processor} does not read {parked.topic} in this release")
            parking.keep(id_, parked.failed(lacking))
            return
        offsets = list(islice(parking.offsets(id_), at_most))
        records, missing = await self._reread(source.place, offsets)

        def failure_at(offset: int, is_first: bool) -> Failure | None:
            record = records.get(offset)
            if _will_be_reread(source, offset):
                return NOT_REACHED_AGAIN
            if record is None:
                return missing
            if is_first and corrected is not None:
                record = replace(record, value=corrected)
            failure = attempt(processor, record)
            if failure and not (is_first and failure.code == parked.code):  # else it has a dead letter already
                bury(record, failure.code, failure.reason)
            if failure and not processor.holds_up(failure) and id_ != place_id(processor.name, record):
                parking.set_aside(processor.name, record, failure)
                return None
            return failure

        for done, offset in enumerate(offsets):
            if done % TURN_RECORDS == 0:
                await asyncio.sleep(0)  # heartbeats and HTTP get their turn
            if failure := failure_at(offset, is_first=not done):
                break
        else:
            done, failure = len(offsets), NO_MORE_AT_ONCE
        left = parking.drop(id_, done)
        if left is not None:
            parking.keep(id_, left.failed(failure))

    def _source(self, parked: Parked) -> Source | None:
        """None when this release no longer reads the topic."""
        return self._sources.get(Place(parked.topic, parked.partition))

    async def _reread(self, place: Place, offsets: Sequence[int]) -> tuple[Mapping[int, ConsumerRecord], Failure]:
        """The records at these offsets, by offset, and the reason if some are missing."""
        found: dict[int, ConsumerRecord] = {}
        size_bytes = 0
        missing = Failure("gone", "the record is no longer there")
        reader = self._new_consumer()
        try:
            async with asyncio.timeout(REREAD_S):
                await reader.start()
                async for record in records_at(reader, place, offsets):
                    found[record.offset] = record
                    size_bytes += len(record.value or b"")
                    if size_bytes > REREAD_BYTES:
                        missing = NO_MORE_AT_ONCE
                        break
        except OffsetOutOfRangeError as error:
            log.warning("parked records are no longer in the log", topic=place.topic, reason=str(error))
        except (KafkaError, TimeoutError) as error:
            missing = Failure("unread", f"it can't be read now, retry: {type(error).__name__}")
            log.warning("parked records can't be read now", topic=place.topic, read=len(found), reason=repr(error))
        finally:
            await reader.stop()
        return found, missing


def _will_be_reread(source: Source, offset: int) -> bool:
    """Whether the source was set back to before that record: earlier records of its key may still come."""
    return source.position <= offset
