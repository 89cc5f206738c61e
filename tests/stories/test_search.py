"""What a search reads of the log, and what it takes for the whole story, without a broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import count
from typing import Protocol

import pytest
from pydantic_core import to_json

from shared.engine.batch import LETTER_PART_BYTES
from shared.kafka.brokers import Bounds
from shared.kafka.reader import ReadRecord
from shared.kafka.search import LogSearch
from shared.kafka.spans import Span
from shared.runtime.positions import Place
from shared.stories import search
from shared.stories.search import NoStory, NotReached, find_story
from shared.stories.story import Story
from shared.topology.topics import Topic, Topology
from tests.stories.test_tree import buried, command, event, record

A = Topology("a", (Topic("a.commands.v1"), Topic("a.events.v1"), Topic("a.timers.v1")))
B = Topology("b", (Topic("b.commands.v1"), Topic("b.events.v1")))
EVENTS = Place("a.events.v1", 0)
HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS


class Log(LogSearch):
    """One in memory, of partitions that begin at 0. What is missing there, retention has removed since.

    absent: topics that the brokers do not let us see.
    """

    def __init__(self, records: Iterable[ReadRecord], absent: Set[str]) -> None:
        self.refused: set[str] = set()
        self.read = 0
        self._absent = absent
        self._of: dict[Place, list[ReadRecord]] = defaultdict(list)
        for each in sorted(records, key=lambda each: each.offset):
            self._of[Place(each.topic, each.partition)].append(each)

    def __exit__(self, *_: object) -> None:
        pass

    def bounds(self, topics: Set[str]) -> Mapping[Place, Bounds]:
        places = [Place(topic, 0) for topic in topics - self._absent]
        ends = {place: max((each.offset + 1 for each in self._of[place]), default=0) for place in places}
        return {place: Bounds(0, end, end) for place, end in ends.items()}

    def offsets_at(self, ends: Mapping[Place, int], at_ms: int) -> dict[Place, int]:
        return {
            each: next(
                (found.offset for found in self._of[each] if end > found.offset and found.timestamp >= at_ms), end
            )
            for each, end in ends.items()
        }

    def records_with(self, spans: Iterable[Span], texts: Sequence[bytes]) -> Iterator[ReadRecord | None]:
        for span in spans:
            for found in self._of[span.place]:
                if span.start <= found.offset < span.end:
                    self.read += 1
                    if any(text in (found.value or b"") for text in texts):
                        yield found
        yield None


class Telling(Protocol):
    def __call__(
        self, *records: ReadRecord, of: str = "story", absent: Set[str] = frozenset(), within_s: float = 9.0
    ) -> Story: ...


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Telling:
    """Searches a log of these records for `of`."""

    def found(*records: ReadRecord, of: str = "story", absent: Set[str] = frozenset(), within_s: float = 9.0) -> Story:
        monkeypatch.setattr(search, "LogSearch", lambda _: Log(records, absent))
        return find_story("", [A, B], of, now_ms=NOW_MS, within_s=within_s)

    return found


def ids(found: Story) -> list[tuple[int, str]]:
    return [(each.depth, each.id) for each in found.steps]


@pytest.mark.parametrize(
    ("id_", "data"), [("c1", {}), ('"c\\1"', {}), ("c-é", {}), ("c1", {"text": "x" * LETTER_PART_BYTES})]
)
def test_a_parked_record_says_why_whatever_its_id_and_however_long(
    story: Telling, id_: str, data: dict[str, str]
) -> None:
    about = {"data": data, "type": "do", "command_id": "c1", "correlation_id": id_}
    parked = ReadRecord("a.commands.v1", 0, 0, b"a", to_json(about), NOW_MS)
    (found,) = story(parked, buried(parked, at=NOW_MS + 1), of=id_).steps
    assert [each.code for each in found.failures] == ["bad"]


def test_a_request_that_was_sent_again_shows_what_the_first_one_led_to(story: Telling) -> None:
    first, again = NOW_MS - 20 * HOUR_MS, NOW_MS - HOUR_MS
    found = story(
        command("a.commands.v1", 0, "c1", at=first),
        event("a.events.v1", 0, "e1", "c1", at=first + 10),
        command("a.commands.v1", 1, "c1", at=again),
    )
    assert ids(found) == [(0, "c1"), (1, "e1"), (1, "c1")]
    assert found.whole


def test_a_command_that_led_to_nothing_is_whole_once_no_first_one_was_found(story: Telling) -> None:
    other = [record("b.events.v1", at, at * HOUR_MS, type="x", event_id="x", correlation_id="x") for at in range(999)]
    found = story(*other, command("a.commands.v1", 0, "c1", at=NOW_MS - HOUR_MS))
    assert ids(found) == [(0, "c1")]
    assert found.whole
    assert found.records_read < 100


def test_an_effect_that_is_committed_during_the_search_is_found_and_not_sought_earlier(
    story: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = count()
    whole = Log.bounds

    def bounds(self: Log, topics: Set[str]) -> Mapping[Place, Bounds]:
        found = whole(self, topics)
        return {**found, EVENTS: Bounds(0, 0, 0)} if next(asked) == 0 else found

    monkeypatch.setattr(Log, "bounds", bounds)
    other = [record("b.events.v1", at, NOW_MS - 9 * HOUR_MS) for at in range(100)]
    answered = command("a.commands.v1", 0, "c1", at=NOW_MS - 20)
    found = story(*other, answered, event("a.events.v1", 0, "e1", "c1", at=NOW_MS - 10))
    assert ids(found) == [(0, "c1"), (1, "e1")]
    assert found.whole
    assert found.records_read < 100


def test_what_was_parked_is_not_sought_earlier(story: Telling) -> None:
    parked = command("a.commands.v1", 1, "c1", at=NOW_MS - HOUR_MS)
    other = [record("b.events.v1", at, NOW_MS - 9 * HOUR_MS) for at in range(100)]
    found = story(*other, parked, buried(parked, at=NOW_MS - HOUR_MS + 1))
    assert [each.code for each in found.steps[0].failures] == ["bad"]
    assert found.records_read < 100


def test_a_search_ends_though_retention_removes_what_it_has_yet_to_read(story: Telling) -> None:
    with pytest.raises(NoStory):
        story(command("a.commands.v1", 5, "c1", at=NOW_MS - HOUR_MS), of="nobody")
    lost = event("a.events.v1", 5, "e1", "c1", at=NOW_MS - HOUR_MS)
    assert not story(lost).whole


def test_where_causes_are_hidden_what_follows_is_read_and_not_all_that_was_before(story: Telling) -> None:
    at = NOW_MS - HOUR_MS
    old = [record("a.events.v1", each, each) for each in range(100)]
    found = story(
        *old,
        event("b.events.v1", 0, "e2", "c2", at=at),
        command("a.commands.v1", 0, "c3", "e2", at=at + 30_000),
        of="b.events.v1/0/0",
        absent={"b.commands.v1"},
    )
    assert ids(found) == [(0, "e2"), (1, "c3")]
    assert (found.whole, found.unread) == (False, ("b.commands.v1",))
    assert found.records_read < 100


def test_where_some_causes_are_hidden_others_are_sought(story: Telling) -> None:
    at = NOW_MS - HOUR_MS
    found = story(
        event("b.events.v1", 0, "e2", "c2", at=at - 4 * HOUR_MS),
        command("a.commands.v1", 0, "c3", "e2", at=at),
        of="c3",
        absent={"b.commands.v1"},
    )
    assert ids(found) == [(0, "e2"), (1, "c3")]


def test_a_story_whose_timer_is_open_is_not_whole(story: Telling) -> None:
    begun = command("a.commands.v1", 0, "c1", at=NOW_MS - 10), event("a.events.v1", 0, "e1", "c1", at=NOW_MS - 9)
    assert story(*begun).whole
    assert not story(*begun, command("a.timers.v1", 0, "t1", "e1", at=NOW_MS - 8)).whole


def test_a_timers_delay_says_nothing_of_how_long_others_wait(story: Telling) -> None:
    begun, due = NOW_MS - 900 * HOUR_MS, NOW_MS - 880 * HOUR_MS
    other = [record("b.events.v1", hour, due + hour * HOUR_MS) for hour in range(880)]
    found = story(
        *other,
        command("a.commands.v1", 0, "c1", at=begun),
        event("a.events.v1", 0, "e1", "c1", at=begun + 1),
        command("a.timers.v1", 0, "t1", "e1", at=begun + 2),
        command("a.commands.v1", 1, "t1", "e1", at=due),
        event("a.events.v1", 1, "e2", "t1", at=due + 10_000),
        event("a.events.v1", 2, "e3", "t1", at=due + 10_001),
        of="a.commands.v1/0/0",
    )
    assert [id_ for _, id_ in ids(found)] == ["c1", "e1", "t1", "t1", "e2", "e3"]
    assert found.whole
    assert found.records_read < 20


def test_records_whose_causes_go_round_in_a_circle_are_counted(story: Telling) -> None:
    circle = event("a.events.v1", 0, "e1", "e2", at=NOW_MS - 9), event("a.events.v1", 1, "e2", "e1", at=NOW_MS - 9)
    found = story(command("a.commands.v1", 0, "c1", at=NOW_MS - 10), *circle)
    assert (ids(found), found.circular, found.whole) == ([(0, "c1")], 2, False)


def test_when_the_time_is_up_it_tells_what_is_left_or_shows_what_it_has(story: Telling) -> None:
    records = [command("a.commands.v1", 1, "c1", at=NOW_MS - HOUR_MS), event("a.events.v1", 0, "e1", "c1", at=NOW_MS)]
    for unreached in ("c1", "a.commands.v1/0/0"):  # retention has removed what lies there
        with pytest.raises(NotReached, match=r"3 are left, which takes .* s at most; fix: `python3 dev.py story "):
            story(*records, of=unreached, within_s=-1.0)
    found = story(*records, of="a.commands.v1/0/1", within_s=-1.0)
    assert ids(found) == [(0, "c1")]
    assert not found.whole


def test_the_fix_can_be_pasted_whatever_the_id_is(story: Telling) -> None:
    with pytest.raises(NotReached, match=r"`python3 dev.py story 'x; rm y'`"):
        story(command("a.commands.v1", 0, "c1"), of="x; rm y", within_s=-1.0)
