"""What of the topics is read for the newest events, without a broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set

import pytest

from shared.kafka.reader import ReadRecord
from shared.kafka.search import LogSearch
from shared.kafka.spans import Span
from shared.runtime.positions import Place
from shared.stories import tail
from shared.stories.tail import KEPT, Tail, spans_of, unread_in
from tests.stories.test_tree import event

TOPIC = "a.events.v1"


class Log(LogSearch):
    """Of events in one partition. asked: how often for what."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.events: list[ReadRecord] = []
        self.asked: Counter[str] = Counter()

    def append(self, count: int) -> None:
        begin = len(self.events)
        self.events += [event(TOPIC, offset, f"e{offset}", at=offset) for offset in range(begin, begin + count)]

    def places(self, topics: Set[str]) -> Sequence[Place]:
        self.asked["places"] += 1
        return [Place(topic, 0) for topic in topics]

    def ends(self, places: Collection[Place]) -> Mapping[Place, int]:
        self.asked["ends"] += 1
        return dict.fromkeys(places, len(self.events))

    def records_with(self, spans: Iterable[Span], texts: Sequence[bytes]) -> Iterator[ReadRecord | None]:
        self.asked["records"] += 1
        for span in spans:
            yield from self.events[span.start : span.end]
        yield None


def test_a_look_at_nothing_new_is_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr(tail, "LogSearch", lambda _: log)
    looking = Tail("", [TOPIC])
    log.append(3)
    newest = looking.look()
    assert [each.id for each in newest.events] == ["e0", "e1", "e2"]
    for _ in range(3):
        assert looking.look() is newest
    assert log.asked == {"places": 1, "ends": 4, "records": 1}


def test_what_came_before_the_first_look_is_not_counted_and_what_came_since_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a page that began before it would say that so many came too fast to be shown."""
    log = Log()
    monkeypatch.setattr(tail, "LogSearch", lambda _: log)
    looking = Tail("", [TOPIC])
    log.append(2 * KEPT)
    newest = looking.look()
    assert (len(newest.events), newest.seen) == (KEPT, 0)
    log.append(5)
    assert looking.look().seen == 5
    log.append(2 * KEPT)
    assert looking.look().seen == 5 + 2 * KEPT


def test_what_came_since_is_read_once_and_of_much_the_last() -> None:
    ends = {Place(TOPIC, 0): 1_000, Place(TOPIC, 1): 5}
    most = KEPT // 2
    assert spans_of(ends, {}) == [Span(Place(TOPIC, 0), 1_000 - most, 1_000), Span(Place(TOPIC, 1), 0, 5)]
    assert spans_of(ends, {Place(TOPIC, 0): 998, Place(TOPIC, 1): 5}) == [Span(Place(TOPIC, 0), 998, 1_000)]
    assert spans_of(ends, {Place(TOPIC, 0): 5, Place(TOPIC, 1): 5}) == [Span(Place(TOPIC, 0), 1_000 - KEPT, 1_000)]


def test_partitions_without_news_leave_their_share_to_a_burst() -> None:
    ends = {Place(TOPIC, partition): 100 for partition in range(96)}
    after = dict.fromkeys(ends, 100) | {Place(TOPIC, 7): 90}
    assert spans_of(ends, after) == [Span(Place(TOPIC, 7), 90, 100)]
    assert unread_in(spans_of(ends, after), after) == 0


def test_what_comes_too_fast_to_be_read_is_counted() -> None:
    ends = {Place(TOPIC, 0): 1_000, Place(TOPIC, 1): 5}
    after = {Place(TOPIC, 0): 100, Place(TOPIC, 1): 5}
    assert unread_in(spans_of(ends, after), after) == 900 - KEPT
    assert unread_in(spans_of(ends, {}), {}) == 0


def test_a_topic_that_was_made_again_is_read_from_its_start() -> None:
    assert spans_of({Place(TOPIC, 0): 3}, {Place(TOPIC, 0): 1_000}) == [Span(Place(TOPIC, 0), 0, 3)]
