"""Spans of what a worker does with messages of stories that are traced: of each record that it writes, of each
processor that handled one, and of the commit.

They are told once the batch is committed, so that nothing is told that has not happened. A record's own span is told
where it is written, with the place and the time that its broker gave it, and so is the one of its story
(shared.stories.traces). What only the story knows is left to it: when the original of a copy was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace

from shared.domain.envelope import Identity, identity_in
from shared.engine.batch import Batch
from shared.engine.processors import BEHIND, Processor, TimerProcessor
from shared.parking.parking import Parking
from shared.runtime.clock import brokers_clock
from shared.runtime.traces import CONSUMER, INTERNAL, MILLISECOND, Span, messaging, of_record, span_id, trace_id
from shared.runtime.tracing import Tracing
from shared.topology.records import SourceRecord
from shared.topology.topics import Topology

PAST_S = 3_600.0
_ORIGINALS = ("commands", "events", "timers")  # kinds of topics, of which the others have copies


class Tracer:
    """Of one worker."""

    def __init__(self, tracing: Tracing, topology: Topology) -> None:
        self._tracing = tracing
        self._service, self._group = topology.service, topology.group

    def traced(self, records: Sequence[SourceRecord]) -> Iterator[tuple[int, Identity]]:
        """Those of a traced story, each by its index; none where the past is read, as by a view that is filled anew."""
        if records and records[-1].timestamp / 1000 < brokers_clock.now() - PAST_S:
            return
        takes = self._tracing.takes
        for index, record in enumerate(records):
            if (found := identity_in(record.value)) is not None and takes(found.correlation_id):
                yield index, found

    @contextmanager
    def handling(
        self, record: SourceRecord, of: Identity, processor: Processor, batch: Batch, parking: Parking
    ) -> Iterator[None]:
        """Around the processor's work on the record."""
        is_held, written, repeats = parking.holds(processor.name, record), len(batch.records), batch.repeats
        begin_ns = _now_ns()
        yield
        error = BEHIND.code if is_held else ""
        for index in range(written, len(batch.records)):
            if batch.records[index].topic == batch.dead_letters:
                error = json.loads(batch.records[index].value or b"{}")["code"]
            else:
                self._note(index, record, of, processor, batch)
        batch.spans.append(self._span(record, of, processor.verb, processor.name, begin_ns, _now_ns(), error))
        is_first = batch.repeats == repeats  # else an earlier record has told of the message
        if processor.outcomes is not None and of.causation_id is None and is_first:
            place = record.topic, record.partition, record.offset
            at_ns = record.timestamp * MILLISECOND
            batch.spans.append(of_record(of, place, at_ns, 0, is_copy=False))

    def _note(self, index: int, cause: SourceRecord, of: Identity, processor: Processor, batch: Batch) -> None:
        """Has the span of the record that is written told of, with its place."""
        record = batch.records[index]
        effect = identity_in(record.value)
        if effect is None or cause.topic.split(".")[1] not in _ORIGINALS:
            return
        if isinstance(processor, TimerProcessor) and processor.due is not None:
            return  # it may have been written again before, many times
        note = partial(_written, batch.spans, record.topic, cause.timestamp, effect, effect.id == of.id)
        batch.records[index] = replace(record, note=note)

    def committed(self, batch: Batch, took_s: float) -> None:
        if not batch.traced:
            return
        end_ns = _now_ns()
        for record, of in batch.traced:
            batch.spans.append(self._span(record, of, "commit", "", end_ns - int(took_s * 1e9), end_ns))
        self._tracing.tell(batch.spans)

    def _span(
        self, record: SourceRecord, of: Identity, verb: str, by: str, begin_ns: int, end_ns: int, error: str = ""
    ) -> Span:
        """One of our own, below that of the message."""
        place = record.topic, record.partition, record.offset
        told = messaging(verb, "process", of, place)
        told["messaging.consumer.group.name"] = self._group
        return Span(
            service=self._service,
            trace=trace_id(of.correlation_id),
            id=span_id(" ".join(map(str, (of.id, *place, self._group, verb, by)))),
            parent=span_id(of.id),
            name=f"{verb} {by or of.type}",
            kind=CONSUMER if by else INTERNAL,
            begin_ns=begin_ns,
            end_ns=end_ns,
            attributes=told,
            error=error,
            worker=self._tracing.worker,
        )


def _written(
    spans: list[Span], topic: str, cause_ms: int, of: Identity, is_copy: bool, partition: int, offset: int, at_ms: int
) -> None:
    waited_ns = max(0, at_ms - cause_ms) * MILLISECOND
    spans.append(of_record(of, (topic, partition, offset), at_ms * MILLISECOND, waited_ns, is_copy=is_copy))


def _now_ns() -> int:
    return int(brokers_clock.now() * 1e9)
