"""What a search reads of the log, and what it takes for the whole story, without a broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import pytest
from pydantic_core import to_json

from shared.engine.batch import LETTER_PART_BYTES
from shared.kafka.brokers import Bounds
from shared.kafka.reader import ReadRecord
from shared.kafka.search import LogSearch
from shared.kafka.spans import Span
from shared.runtime.positions import Partition
from shared.stories import search
from shared.stories.search import find_story
from shared.stories.story import Story
from shared.topology.topics import Topic, Topology
from tests.stories.test_tree import buried

A = Topology("a", (Topic("a.commands.v1"), Topic("a.events.v1"), Topic("a.timers.v1")))
HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS


class Log(LogSearch):
    """One in memory, each topic of one partition, with the first record's offset as its start."""

    def __init__(self, records: Iterable[ReadRecord]) -> None:
        self.refused: set[str] = set()
        self.read = 0
        self._of: dict[Partition, list[ReadRecord]] = defaultdict(list)
        for each in sorted(records, key=lambda each: each.offset):
            self._of[each.topic, each.partition].append(each)

    def __exit__(self, *_: object) -> None:
        pass

    def bounds(self, topics: Set[str]) -> Mapping[Partition, Bounds]:
        """Of those topics; one without a record is empty."""
        ends = {each: records[-1].offset + 1 for each, records in self._of.items()}
        starts = {each: records[0].offset for each, records in self._of.items()}
        places = [(topic, 0) for topic in topics]
        return {each: Bounds(starts.get(each, 0), ends.get(each, 0), ends.get(each, 0)) for each in places}

    def offsets_at(self, ends: Mapping[Partition, int], at_ms: int) -> dict[Partition, int]:
        return {
            each: next(
                (found.offset for found in self._of[each] if end > found.offset and found.timestamp >= at_ms), end
            )
            for each, end in ends.items()
        }

    def records_with(self, spans: Iterable[Span], texts: Sequence[bytes]) -> Iterator[ReadRecord | None]:
        for span in spans:
            for found in self._of[span.topic, span.partition]:
                if span.start <= found.offset < span.end:
                    self.read += 1
                    if any(text in (found.value or b"") for text in texts):
                        yield found
        yield None


def story(monkeypatch: pytest.MonkeyPatch, records: Iterable[ReadRecord], text: str = "story") -> Story:
    monkeypatch.setattr(search, "LogSearch", lambda _: Log(records))
    return find_story("", [A], text, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("id_", "data"), [("c1", {}), ('"c\\1"', {}), ("c-é", {}), ("c1", {"text": "x" * LETTER_PART_BYTES})]
)
def test_a_parked_record_says_why_whatever_its_id_and_however_long(
    monkeypatch: pytest.MonkeyPatch, id_: str, data: dict[str, str]
) -> None:
    about = {"data": data, "type": "do", "command_id": "c1", "correlation_id": id_}
    parked = ReadRecord("a.commands.v1", 0, 0, b"a", to_json(about), NOW_MS)
    (found,) = story(monkeypatch, [parked, buried(parked, at=NOW_MS + 1)], id_).steps
    assert [each.code for each in found.failures] == ["bad"]
