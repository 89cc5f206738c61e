"""What of the topics is read for the newest events, without a broker."""

from __future__ import annotations

from shared.kafka.brokers import Bounds
from shared.kafka.spans import Span
from shared.stories.tail import READ, spans_of

TOPIC = "a.events.v1"


def test_what_came_since_is_read_once_and_of_much_the_last() -> None:
    bounds = {(TOPIC, 0): Bounds(0, 1_000, 1_000), (TOPIC, 1): Bounds(990, 995, 2_000)}
    most = READ // 2
    assert spans_of(bounds, {}) == [Span(TOPIC, 0, 1_000 - most, 1_000), Span(TOPIC, 1, 990, 995)]
    assert spans_of(bounds, {(TOPIC, 0): 998, (TOPIC, 1): 995}) == [Span(TOPIC, 0, 998, 1_000)]
    assert spans_of(bounds, {(TOPIC, 0): 5, (TOPIC, 1): 995}) == [Span(TOPIC, 0, 1_000 - most, 1_000)]


def test_a_topic_that_was_made_again_is_read_from_its_start() -> None:
    assert spans_of({(TOPIC, 0): Bounds(0, 3, 3)}, {(TOPIC, 0): 1_000}) == [Span(TOPIC, 0, 0, 3)]
