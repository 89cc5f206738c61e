"""What of the topics is read for the newest events, without a broker."""

from __future__ import annotations

from shared.kafka.spans import Span
from shared.runtime.positions import Place
from shared.stories.tail import READ, spans_of, unread_in

TOPIC = "a.events.v1"


def test_what_came_since_is_read_once_and_of_much_the_last() -> None:
    ends = {Place(TOPIC, 0): 1_000, Place(TOPIC, 1): 5}
    most = READ // 2
    assert spans_of(ends, {}) == [Span(Place(TOPIC, 0), 1_000 - most, 1_000), Span(Place(TOPIC, 1), 0, 5)]
    assert spans_of(ends, {Place(TOPIC, 0): 998, Place(TOPIC, 1): 5}) == [Span(Place(TOPIC, 0), 998, 1_000)]
    assert spans_of(ends, {Place(TOPIC, 0): 5, Place(TOPIC, 1): 5}) == [Span(Place(TOPIC, 0), 1_000 - READ, 1_000)]


def test_partitions_without_news_leave_their_share_to_a_burst() -> None:
    ends = {Place(TOPIC, partition): 100 for partition in range(96)}
    after = dict.fromkeys(ends, 100) | {Place(TOPIC, 7): 90}
    assert spans_of(ends, after) == [Span(Place(TOPIC, 7), 90, 100)]
    assert unread_in(spans_of(ends, after), after) == 0


def test_what_comes_too_fast_to_be_read_is_counted() -> None:
    ends = {Place(TOPIC, 0): 1_000, Place(TOPIC, 1): 5}
    after = {Place(TOPIC, 0): 100, Place(TOPIC, 1): 5}
    assert unread_in(spans_of(ends, after), after) == 900 - READ
    assert unread_in(spans_of(ends, {}), {}) == 0


def test_a_topic_that_was_made_again_is_read_from_its_start() -> None:
    assert spans_of({Place(TOPIC, 0): 3}, {Place(TOPIC, 0): 1_000}) == [Span(Place(TOPIC, 0), 0, 3)]
