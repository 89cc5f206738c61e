"""The spans of a story, which are those that workers have told of it, if it was traced. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from shared.domain.envelope import Identity
from shared.runtime.traces import INTERNAL, MILLISECOND, Span, of_record, span_id, trace_id
from shared.stories.story import Step, Story


def spans_of(story: Story) -> Iterator[Span]:
    """One for each record, and below it one for each time that it was parked."""
    for step in story.steps:
        span = _span(story, step)
        yield span
        for number, failure in enumerate(step.failures):
            at_ns = _nanoseconds(failure.at)
            yield Span(
                service=span.service,
                trace=trace_id(story.correlation_id),
                id=span_id(f"{step.id} {step.place} parked {number}"),
                parent=span.id,
                name="parked",
                kind=INTERNAL,
                begin_ns=at_ns,
                end_ns=at_ns,
                attributes={},
                error=failure.code,
            )


def _span(story: Story, step: Step) -> Span:
    return of_record(
        Identity(step.type, story.correlation_id, step.causation_id, event_id=step.id),
        (step.topic, step.partition, step.offset),
        _nanoseconds(step.at),
        (step.waited_ms or 0) * MILLISECOND,
        is_copy=step.cause is not None and story.steps[step.cause].id == step.id,
    )


def _nanoseconds(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000
