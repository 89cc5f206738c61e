"""What of the topics is read for the newest events, without a broker."""

from __future__ import annotations

from shared.kafka.brokers import Bounds
from shared.kafka.spans import Span
from shared.runtime.positions import Place
from shared.stories.tail import READ, spans_of, unread_in

TOPIC = "a.events.v1"


def test_what_came_since_is_read_once_and_of_much_the_last() -> None:
    bounds = {Place(TOPIC, 0): Bounds(0, 1_000, 1_000), Place(TOPIC, 1): Bounds(990, 995, 2_000)}
    most = READ // 2
    assert spans_of(bounds, {}) == [Span(Place(TOPIC, 0), 1_000 - most, 1_000), Span(Place(TOPIC, 1), 990, 995)]
    assert spans_of(bounds, {Place(TOPIC, 0): 998, Place(TOPIC, 1): 995}) == [Span(Place(TOPIC, 0), 998, 1_000)]
    assert spans_of(bounds, {Place(TOPIC, 0): 5, Place(TOPIC, 1): 995}) == [Span(Place(TOPIC, 0), 1_000 - READ, 1_000)]


def test_partitions_without_news_leave_their_share_to_a_burst() -> None:
    bounds = {Place(TOPIC, partition): Bounds(0, 100, 100) for partition in range(96)}
    after = dict.fromkeys(bounds, 100) | {Place(TOPIC, 7): 90}
    assert spans_of(bounds, after) == [Span(Place(TOPIC, 7), 90, 100)]
    assert unread_in(spans_of(bounds, after), after) == 0


def test_what_comes_too_fast_to_be_read_is_counted() -> None:
    bounds = {Place(TOPIC, 0): Bounds(0, 1_000, 1_000), Place(TOPIC, 1): Bounds(0, 5, 5)}
    after = {Place(TOPIC, 0): 100, Place(TOPIC, 1): 5}
    assert unread_in(spans_of(bounds, after), after) == 900 - READ
    assert unread_in(spans_of(bounds, {}), {}) == 0


def test_a_topic_that_was_made_again_is_read_from_its_start() -> None:
    assert spans_of({Place(TOPIC, 0): Bounds(0, 3, 3)}, {Place(TOPIC, 0): 1_000}) == [Span(Place(TOPIC, 0), 0, 3)]
