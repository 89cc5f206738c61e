"""A story as an OpenTelemetry trace, in OTLP's JSON. Every id is a hash, so all who make it make the same one. Pure.

Names follow the semantic conventions for messaging, version 1.44. No key and no content: a key may be a person's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import groupby
from typing import Any

from shared.stories.story import Step, Story

Json = dict[str, Any]

_PRODUCER = 4
_TRACE_BYTES, _SPAN_BYTES = 16, 8


def trace_id(correlation_id: str) -> str:
    """32 hex digits."""
    return blake2b(correlation_id.encode(), digest_size=_TRACE_BYTES).hexdigest()


def span_id(message_id: str) -> str:
    """16 hex digits."""
    return blake2b(message_id.encode(), digest_size=_SPAN_BYTES).hexdigest()


def as_otlp(story: Story) -> Json:
    """What a collector takes at /v1/traces. A span lasts from the cause's record to the message's own."""
    of_service = sorted(enumerate(story.steps), key=lambda each: each[1].service)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [_attribute("service.name", service)]},
                "scopeSpans": [
                    {"scope": {"name": "onefold.stories"}, "spans": [_span(story, step) for _, step in steps]}
                ],
            }
            for service, steps in groupby(of_service, key=lambda each: each[1].service)
        ]
    }


def _span(story: Story, step: Step) -> Json:
    cause = None if step.cause is None else story.steps[step.cause]
    is_copy = cause is not None and cause.id == step.id
    parent = step.id if is_copy else step.causation_id
    return {
        "traceId": trace_id(story.correlation_id),
        "spanId": span_id(f"{step.id} {step.place}" if is_copy else step.id),
        **({"parentSpanId": span_id(parent)} if parent else {}),
        "name": step.type,
        "kind": _PRODUCER,
        "startTimeUnixNano": str(_nanoseconds(step.at) - (step.waited_ms or 0) * 1_000_000),
        "endTimeUnixNano": str(_nanoseconds(step.at)),
        "attributes": list(_attributes(story, step)),
        "status": {"code": 2, "message": step.failures[-1].code} if step.failures else {},
    }


def _attributes(story: Story, step: Step) -> Iterable[Json]:
    named: Mapping[str, str] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": step.topic,
        "messaging.destination.partition.id": str(step.partition),
        "messaging.message.id": step.id,
        "messaging.message.conversation_id": story.correlation_id,
    }
    yield from (_attribute(name, value) for name, value in named.items())
    yield {"key": "messaging.kafka.offset", "value": {"intValue": str(step.offset)}}


def _attribute(name: str, value: str) -> Json:
    return {"key": name, "value": {"stringValue": value}}


def _nanoseconds(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000
