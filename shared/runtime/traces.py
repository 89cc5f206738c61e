"""Spans of OpenTelemetry: their ids, which of them are made, their names, and OTLP's JSON of them. Pure.

Every id of a message is a hash, so all who tell of it tell the same, at once or years later, and no record carries
anything for it. Names follow the semantic conventions for messaging and HTTP, version 1.44. A span has no key and no
content: a key may be a person's id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import groupby
from typing import Any, NamedTuple

from shared.domain.envelope import Identity

INTERNAL, SERVER, PRODUCER, CONSUMER = 1, 2, 4, 5  # the kinds of spans, by OTLP's numbers
MILLISECOND = 1_000_000

_TRACE_BYTES, _SPAN_BYTES, _BOUND_BYTES = 16, 8, 8
_ABOVE_ALL = b"\xff" * (_BOUND_BYTES + 1)
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")

Attributes = Mapping[str, str | int]
Json = dict[str, Any]


class Span(NamedTuple):
    """trace, id, parent: in hex. service: that it is told of. worker: that tells of what it did itself.

    begin_ns, end_ns: since the epoch, by the brokers' clock. error: a code; empty if there is none. link: the trace and
    the span that a caller of ours names.
    """

    service: str
    trace: str
    id: str
    parent: str | None
    name: str
    kind: int
    begin_ns: int
    end_ns: int
    attributes: Attributes
    error: str = ""
    link: tuple[str, str] | None = None
    worker: str = ""


def trace_id(correlation_id: str) -> str:
    """32 hex digits."""
    return blake2b(correlation_id.encode(), digest_size=_TRACE_BYTES).hexdigest()


def span_id(message_id: str) -> str:
    """16 hex digits."""
    return blake2b(message_id.encode(), digest_size=_SPAN_BYTES).hexdigest()


def bound_of(share: float) -> bytes:
    """For `is_below`: by it, OpenTelemetry's own samplers by trace id take the same share, and the same traces."""
    return _ABOVE_ALL if share >= 1 else round(share * 2**64).to_bytes(_BOUND_BYTES, "big")


def is_below(correlation_id: str, bound: bytes) -> bool:
    """Whether the story is traced: every worker says the same of it."""
    return blake2b(correlation_id.encode(), digest_size=_TRACE_BYTES).digest()[-_BOUND_BYTES:] < bound


def of_record(of: Identity, place: tuple[str, int, int], at_ns: int, waited_ns: int, *, is_copy: bool) -> Span:
    """That of a message: from the cause's record to its own. place: topic, partition and offset.

    is_copy: whether an earlier record has the same message, such as a timer of the command that is due.
    """
    topic, partition, offset = place
    parent = of.id if is_copy else of.causation_id
    return Span(
        service=topic.split(".")[0],
        trace=trace_id(of.correlation_id),
        id=span_id(f"{of.id} {topic}/{partition}@{offset}" if is_copy else of.id),
        parent=span_id(parent) if parent else None,
        name=of.type,
        kind=PRODUCER,
        begin_ns=at_ns - waited_ns,
        end_ns=at_ns,
        attributes=messaging("send", "send", of, place),
    )


def messaging(name: str, type_: str, of: Identity, place: tuple[str, int, int]) -> dict[str, str | int]:
    """The attributes of an operation on a message."""
    topic, partition, offset = place
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": name,
        "messaging.operation.type": type_,
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(partition),
        "messaging.message.id": of.id,
        "messaging.message.conversation_id": of.correlation_id,
        "messaging.kafka.offset": offset,
    }


def link_to(traceparent: str | None) -> tuple[str, str] | None:
    """The trace and the span that a W3C header names; None for none, or for text that is none."""
    found = _TRACEPARENT.fullmatch(traceparent or "")
    return None if found is None else (found[1], found[2])


def as_otlp(spans: Iterable[Span]) -> Json:
    """What a collector takes at /v1/traces."""
    of_resource = sorted(spans, key=_resource)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes({name: value for name, value in named.items() if value})},
                "scopeSpans": [{"scope": {"name": "onefold"}, "spans": [_as_json(each) for each in some]}],
            }
            for (service, worker), some in groupby(of_resource, key=_resource)
            if (named := {"service.name": service, "service.instance.id": worker})
        ]
    }


def _resource(span: Span) -> tuple[str, str]:
    return span.service, span.worker


def _as_json(span: Span) -> Json:
    return {
        "traceId": span.trace,
        "spanId": span.id,
        **({"parentSpanId": span.parent} if span.parent else {}),
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.begin_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        **({"links": [{"traceId": span.link[0], "spanId": span.link[1]}]} if span.link else {}),
        "status": {"code": 2, "message": span.error} if span.error else {},
    }


def _attributes(named: Attributes) -> list[Json]:
    return [{"key": name, "value": _value(value)} for name, value in named.items()]


def _value(value: str | int) -> Json:
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
