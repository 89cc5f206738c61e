"""The batch that is being filled: each waiting record goes to the processors of its source."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from shared.domain.envelope import Identity
from shared.domain.errors import REASON_MAX_CHARS
from shared.domain.row import TOO_LARGE
from shared.engine.batch import FULL_RECORDS, Batch, Handling, Refusal
from shared.engine.expiry import ExpiringProcessor, Expiry
from shared.engine.heat import Heat
from shared.engine.holdings import Holdings
from shared.engine.pace import Pace
from shared.engine.processors import Processor
from shared.engine.reading import Reading
from shared.engine.references import ReferenceProcessor
from shared.engine.retries import NO_MORE_AT_ONCE, OperatorRequests
from shared.engine.sources import Source, Spreading
from shared.engine.tracing import Tracer
from shared.kafka.reader import ReadRecord
from shared.kafka.transactions import RecordTooLarge
from shared.parking.parked import Failure, OperatorRequest
from shared.parking.parking import Parking
from shared.runtime.clock import BrokersClock, elapsed_s
from shared.runtime.positions import Place
from shared.tables.rows import Rows
from shared.topology.topics import Table

SLICE_RECORDS = 50  # handled without a break: about a millisecond's work
TIMES_REFUSED = 2  # of a command with an outcome that says so, and without; of a retry with many records, and with one
OPERATOR_REQUESTS = ""  # in the place of a processor's name


class Filling:
    """batch: is being filled. pending: the one before, while it is being committed. careful: changelogs for which a row
    could not be written. heat: where the work goes.
    """

    def __init__(
        self,
        holdings: Holdings,
        reading: Reading,
        requests: OperatorRequests,
        pace: Pace,
        clock: BrokersClock,
        is_interrupted: Callable[[], bool],
        alive: Callable[[], None],
        tracer: Tracer | None = None,
    ) -> None:
        """is_interrupted: whether a rebalance waits. alive: called between slices, that work goes on."""
        self._tracer = tracer
        self._clock = clock
        self.careful: set[Place] = set()
        self.heat = Heat()
        self._holdings = holdings
        self._reading = reading
        self._requests = requests
        self._pace = pace
        self._is_interrupted = is_interrupted
        self._alive = alive
        self._dead_letters = holdings.topology.dead_letters.name
        self._refused: dict[Handling, Refusal] = {}  # what leads to records that are too large
        self._expiry = Expiry()
        self._is_spreading = False  # what is retried
        self._skipped: dict[Place, int] = {}  # positions past offsets without a record, not in a batch yet
        self.batch = Batch(self._dead_letters, self._refused)
        self.pending = Batch(self._dead_letters)

    def drop(self) -> None:
        """All that is not committed will be read again."""
        self.batch = Batch(self._dead_letters, self._refused)
        self.pending = Batch(self._dead_letters)
        self._skipped.clear()
        self._expiry.restart()
        for processor in {each for some in self._holdings.processors.values() for each in some}:
            processor.restart()

    def hand_over(self) -> Batch:
        """The batch, to be committed; the next one begins."""
        batch, self.batch = self.batch, Batch(self._dead_letters, self._refused)
        if batch:
            self.pending = batch
        return batch

    def committed(self, batch: Batch) -> None:
        self.pending = Batch(self._dead_letters)
        if batch.unparks:  # rows of those keys may have expired while they were parked, and the store has them only now
            self._expiry.restart()
        self._expiry.committed()
        self.careful -= {place for place, rows in batch.rows.items() if rows.changed}
        for handling in [each for each in self._refused if each[2] < batch.offsets.get(each[1], 0)]:
            del self._refused[handling]

    def refused(self, refusal: RecordTooLarge) -> None:
        """Remember which record can't be handled, once a batch of one record was refused. Raises the refusal.

        Only brokers know what they take. So after a refusal, records are tried alone, then in batches that grow.
        """
        if self.pending.count > 1 or not refusal.topic:  # without it, the next refusal will name it
            return
        if self.pending.last is None:
            raise refusal
        place, offset = self.pending.last
        handlings = [(name, place, offset) for name in self._writers(place.topic, refusal.topic)]
        times = {each: self._refused[each].times if each in self._refused else 0 for each in handlings}
        handling = min(handlings, key=times.__getitem__, default=None)
        if handling is None or times[handling] == TIMES_REFUSED:
            raise refusal
        self._refused[handling] = Refusal(str(refusal), times[handling] + 1)

    def _writers(self, source: str, topic: str) -> Sequence[str]:
        """The names of the processors of `source` that write to `topic`."""
        if source == self._holdings.topology.parking.name:
            return [OPERATOR_REQUESTS]
        changelog = self._holdings.replicas.changelog
        return [
            each.name
            for each in self._holdings.processors[source]
            if topic in [to.name for to in each.writes] or topic in map(changelog, each.tables)
        ]

    async def process(self, source: Source, records: Sequence[ReadRecord]) -> None:
        """Handle the records, up to a rebalance."""
        if source.place.topic == self._holdings.topology.parking.name:
            await self._fulfil_requests(source, records)
            return
        if source.delay_s:
            records = self._due(source, records)
        parking = self.parking(source.place.number)
        writers = sum(bool(processor.writes) for processor in source.processors)
        spreads = any(isinstance(processor, ReferenceProcessor) for processor in source.processors)
        # what several write keeps the order of the records it answers; what spreads may take many batches
        size = 1 if writers > 1 or spreads else SLICE_RECORDS
        for start in range(0, len(records), size):
            if self._is_interrupted():
                return  # the others are read again after the take-over
            self._alive()
            handled = records[start : start + size]
            handlers = source.handlers(handled)
            self._handle(source, handled, parking)
            if spreading := [processor for processor in handlers if processor.is_spreading]:
                self._come_back(source, Spreading(handled[0].offset, spreading))
                return
            source.handled(handled)
            self.batch.advance(source.place, source.position, len(handled))
            await self._pace.yield_to_http()

    def _come_back(self, source: Source, spreading: Spreading) -> None:
        """To a record that leads to more than has been done of it."""
        source.spreading = spreading
        self._reading.go_to(source.place, spreading.offset)
        self.batch.advance(source.place, source.position, 0)
        self.batch.last = source.place, spreading.offset

    def _handle(self, source: Source, records: Sequence[ReadRecord], parking: Parking) -> None:
        """All of them, and one by itself if it is to tell what they cost."""
        chosen, began = self.heat.choose(len(records)), time.perf_counter()
        if chosen is None:
            self._process(source, records, parking)
            return
        self._process(source, records[:chosen], parking)
        alone = time.perf_counter()
        self._process(source, records[chosen : chosen + 1], parking)
        alone_s = time.perf_counter() - alone
        self._process(source, records[chosen + 1 :], parking)
        self.heat.note(source.place, records[chosen], len(records), alone_s, time.perf_counter() - began)

    def _process(self, source: Source, records: Sequence[ReadRecord], parking: Parking) -> None:
        """Records of traced stories one by one."""
        begin = 0
        for index, of in () if self._tracer is None else self._tracer.traced(records):
            self._process_together(source, records[begin:index], parking)
            self._process_traced(source, records[index], of, parking)
            begin = index + 1
        self._process_together(source, records[begin:] if begin else records, parking)

    def _process_together(self, source: Source, records: Sequence[ReadRecord], parking: Parking) -> None:
        if records:
            for processor in source.handlers(records):
                rows = self._rows_of(processor, source.place.number)
                processor.process(source.begun(processor, records), rows, self.batch, parking)

    def _process_traced(self, source: Source, record: ReadRecord, of: Identity, parking: Parking) -> None:
        assert self._tracer is not None
        self.batch.traced.append((record, of))
        for processor in source.handlers([record]):
            rows = self._rows_of(processor, source.place.number)
            if begun := source.begun(processor, [record]):
                with self._tracer.handling(record, of, processor, self.batch, parking):
                    processor.process(begun, rows, self.batch, parking)

    def _due(self, source: Source, records: Sequence[ReadRecord]) -> Sequence[ReadRecord]:
        """The records that are old enough; the reader goes back to the first that isn't and pauses until it is."""
        due = source.due(records, self._clock.now(), elapsed_s())
        if len(due) < len(records):
            self._reading.go_to(source.place, records[len(due)].offset)
            self._reading.pause(source)
        return due

    async def _fulfil_requests(self, source: Source, records: Sequence[ReadRecord]) -> None:
        """Do what operators want done with parked records.

        Stops early for a rebalance, and for the batch: a retry may take seconds, and other work waits for its commit.
        """
        for done, record in enumerate(records):
            if self._is_interrupted():
                return
            if done and self.batch.full:
                self._reading.go_to(source.place, record.offset)
                return
            self._alive()
            try:
                request = OperatorRequest.model_validate_json(record.value or b"")
            except ValueError as error:
                self.batch.bury(record, "wish.bad", str(error)[:REASON_MAX_CHARS])
            else:
                if await self._fulfil(request, record):
                    self._come_back(source, Spreading(record.offset))
                    return
            source.spreading = None
            source.position = record.offset + 1
            self.batch.advance(source.place, source.position, 1)

    async def _fulfil(self, request: OperatorRequest, record: ReadRecord) -> bool:
        """Returns whether there is more to do of it."""
        self._is_spreading = False
        refusal = self._refused.get((OPERATOR_REQUESTS, Place(record.topic, record.partition), record.offset))
        self.batch.unparks = True
        note = await self._requests.fulfil(
            request,
            self.parking(record.partition),
            partial(self._retry, refusal, record.timestamp),
            self.batch.bury,
            FULL_RECORDS if refusal is None else 1,
        )
        if note is not None:
            self.batch.write(record.topic, *note.record, record.partition)
        return self._is_spreading

    def _retry(
        self, refusal: Refusal | None, asked_ms: int, processor: Processor, record: ReadRecord
    ) -> Failure | None:
        """refusal: of what the retry of more than this record leads to, and the second time of what this one does.

        asked_ms: when an operator asked for it, by the broker.
        """
        if refusal is not None and refusal.times == TIMES_REFUSED:
            return Failure(TOO_LARGE, refusal.reason[:REASON_MAX_CHARS])
        rows, parking = self._rows_of(processor, record.partition), self.parking(record.partition)
        processor.recall(record, parking)
        failure = processor.attempt(record, rows, self.batch, retried_ms=asked_ms)
        processor.note(record.partition, parking)
        self._is_spreading = failure is None and processor.is_spreading
        return NO_MORE_AT_ONCE if self._is_spreading else failure

    async def end_expired(self) -> None:
        """Delete some of the rows that have expired, also while no record comes."""
        expiring = {place for place in self._holdings.sources if place.topic in self._holdings.expiring}
        for place in expiring and expiring - self._holdings.unread():
            source = self._holdings.sources[place]
            for view in source.processors:
                if isinstance(view, ExpiringProcessor):
                    rows, parking = self._rows_of(view, place.number), self.parking(place.number)
                    if rows is not None and self._expiry.end_some(view, rows, parking):
                        self.batch.advance(place, source.position, 0)
                    await self._pace.yield_to_http()

    def _rows_of(self, processor: Processor, partition: int) -> Rows | None:
        return processor.rows_of(partial(self.rows, partition=partition))

    def rows(self, table: Table, partition: int) -> Rows[Any]:
        """The partition of the table as the batch sees it."""
        place = Place(self._holdings.replicas.changelog(table), partition)
        if place not in self.batch.rows:
            pending = self.pending.rows.get(place)
            self.batch.rows[place] = self._holdings.replicas.rows(
                table,
                partition,
                pending.changed if pending else {},
                careful=self._pace.failures > 0 or place in self.careful,
            )
        return self.batch.rows[place]

    def parking(self, partition: int) -> Parking:
        rows, parked = self.rows(self._holdings.topology.parked, partition), self._holdings.parked
        if partition not in parked:
            parked[partition] = {key.decode() for key, _ in rows.store.scan(partition)}
            self._note_topics(Parking(rows, set()), partition)
        return Parking(rows, parked[partition])

    def _note_topics(self, parking: Parking, partition: int) -> None:
        """Beside the rows: of which topics records are handled from now on."""
        read = {topic: id_ for topic, id_ in self._holdings.topic_ids.items() if topic in self._holdings.processors}
        topics = parking.topics | read
        if topics != parking.topics:
            parking.note_topics(partition, topics)

    def pass_empty(self, is_quiet: bool) -> None:
        """Follow the reader past offsets that hold no record: everything that was fetched is handled.

        These positions are committed, too, with the next batch or in a quiet moment. So when retention removes those
        offsets, no record seems to be lost.
        """
        sources = self._holdings.sources
        busy = self._reading.paused | self.batch.offsets.keys() | self.pending.offsets.keys()
        for place in sources.keys() - busy:
            position = self._reading.position(place)
            if position > sources[place].position:
                sources[place].position = self._holdings.reached[place] = self._skipped[place] = position
                self._holdings.answers.tell_progress()
        if self.batch or is_quiet:
            self.batch.offsets = self._skipped | self.batch.offsets
            self._skipped = {}
