"""The newest events of several topics as they are committed: which, of what and when, never what is in them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from pydantic import BaseModel

from shared.kafka.search import LogSearch
from shared.kafka.spans import Span
from shared.runtime.positions import Place
from shared.stories.story import Told, instant, told

KEPT = 60  # and at most so many are read in one look, of all partitions, however many have come
_LISTED_EVERY_S = 10.0  # the brokers tell of all topics there are


class Passed(BaseModel):
    """An event. at: when it was appended, by its broker."""

    id: str
    type: str
    correlation_id: str
    topic: str
    partition: int
    offset: int
    key: str | None
    at: datetime


class Newest(BaseModel):
    """events: the last KEPT, by their time. seen: how many there were since the first look, shown or not.

    Of what one look could not read, `seen` counts offsets, of which some hold no event.
    unread: topics that the brokers do not let us read. problem: why nothing new is known.
    """

    events: tuple[Passed, ...] = ()
    seen: int = 0
    unread: tuple[str, ...] = ()
    problem: str | None = None


class Tail:
    """For one thread at a time. It asks brokers when it is asked, and does nothing in between."""

    def __init__(self, bootstrap: str, topics: Collection[str]) -> None:
        self._bootstrap = bootstrap
        self._topics = frozenset(topics)
        self._log: LogSearch | None = None
        self._places: Collection[Place] = ()
        self._listed_at = -_LISTED_EVERY_S
        self._next: Mapping[Place, int] = {}
        self._newest = Newest()

    def look(self) -> Newest:
        """The same object as before where nothing is new: then it costs one question. Raises BrokersUnavailable."""
        if self._log is None:
            self._log = LogSearch(self._bootstrap)
        ends = self._log.ends(self._known(self._log))
        if spans := spans_of(ends, self._next):
            found = [
                _passed(each) for record in self._log.records_with(spans, [b""]) if record and (each := told(record))
            ]
            self._newest = Newest(
                events=tuple(sorted([*self._newest.events, *found], key=lambda each: each.at)[-KEPT:]),
                seen=self._newest.seen + len(found) + unread_in(spans, self._next) if self._next else 0,
                unread=tuple(sorted(self._log.refused)),
            )
        self._next = ends
        return self._newest

    def _known(self, log: LogSearch) -> Collection[Place]:
        """The partitions, as of some seconds ago; of topics that there were not, as of now."""
        now = time.monotonic()
        if now >= self._listed_at + _LISTED_EVERY_S or self._topics - {place.topic for place in self._places}:
            self._places, self._listed_at = log.places(self._topics), now
        return self._places


def spans_of(ends: Mapping[Place, int], after: Mapping[Place, int]) -> list[Span]:
    """What to read: all since `after`, or the last of it; where nothing was read before, or a topic was made again,
    the last. Partitions without news leave their share to the others.
    """
    spans = [Span(place, begin if (begin := after.get(place, 0)) <= end else 0, end) for place, end in ends.items()]
    news = [span for span in spans if span.start < span.end]
    most = max(1, KEPT // max(1, len(news)))
    return [span._replace(start=max(span.start, span.end - most)) for span in news]


def unread_in(spans: Sequence[Span], after: Mapping[Place, int]) -> int:
    """How many offsets since `after` are before the spans."""
    return sum(max(0, span.start - after.get(span.place, span.start)) for span in spans)


def _passed(each: Told) -> Passed:
    record = each.record
    return Passed(
        id=each.id,
        type=each.body.type,
        correlation_id=each.body.correlation_id,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=None if record.key is None else record.key.decode(errors="replace"),
        at=instant(each.at),
    )
