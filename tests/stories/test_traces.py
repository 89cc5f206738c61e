"""A story as a trace: ids by hash, one span for each record, nothing personal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shared.runtime.traces import as_otlp, span_id, trace_id
from shared.stories.story import Story
from shared.stories.traces import spans_of
from tests.stories.test_tree import SHOP, steps

STORY = Story(
    correlation_id="story",
    whole=True,
    read_until=None,
    unread=(),
    circular=0,
    records_read=8,
    seconds=0.01,
    steps=tuple(steps(*SHOP)),
)


def spans() -> Sequence[Mapping[str, Any]]:
    found = as_otlp(spans_of(STORY))["resourceSpans"]
    return [span for resource in found for scope in resource["scopeSpans"] for span in scope["spans"]]


def test_ids_are_the_same_for_ever_and_everywhere() -> None:
    assert trace_id("story") == "628a391397bb05d45535b3c9e4779c2e"
    assert span_id("c1") == "43f000a36f6d744e"


def test_each_record_is_a_span_below_that_of_its_cause() -> None:
    found = spans()
    assert len({span["spanId"] for span in found}) == len(SHOP)
    assert {span["traceId"] for span in found} == {trace_id("story")}
    named = {span["spanId"]: span["name"] for span in found}
    parents = sorted((span["name"], named.get(span.get("parentSpanId", ""), "")) for span in found)
    assert parents == [
        ("do.c1", ""),
        ("do.c2", "was.e1"),
        ("do.t1", "do.t1"),
        ("do.t1", "was.e1"),
        ("was.e1", "do.c1"),
        ("was.e1", "was.e1"),
        ("was.e2", "do.c2"),
        ("was.e3", "do.t1"),
    ]


def test_a_span_lasts_from_the_cause_to_the_record() -> None:
    (span,) = [span for span in spans() if span["name"] == "do.c2"]
    assert (span["startTimeUnixNano"], span["endTimeUnixNano"]) == ("10000000", "20000000")
    services = [
        each["resource"]["attributes"][0]["value"]["stringValue"] for each in as_otlp(spans_of(STORY))["resourceSpans"]
    ]
    assert services == ["a", "b", "views"]


def test_keys_stay_here() -> None:
    secret = STORY.model_copy(
        update={"steps": tuple(each.model_copy(update={"key": "ann@home"}) for each in STORY.steps)}
    )
    assert "ann@home" not in json.dumps(as_otlp(spans_of(secret)))
