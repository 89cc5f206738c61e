"""Records that hold a text, sought in many partitions at once: what an index would cost all the time, paid when asked.

librdkafka fetches and parses outside the interpreter lock; here each record costs one look into its bytes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from shared.kafka.access import ANSWER_S, IN_NO_GROUP, client_config
from shared.kafka.brokers import Bounds, Brokers, BrokersUnavailable, explained
from shared.kafka.offsets import place_of
from shared.kafka.reader import ReadRecord
from shared.kafka.spans import Span
from shared.runtime.positions import Place

_RECORDS_A_CHUNK = 1_000
_WAIT_S = 0.02  # for a full chunk
_SILENT_S = 30.0
_READER = {
    **IN_NO_GROUP,
    "auto.offset.reset": "earliest",  # what retention removes meanwhile is not sought
    "max.partition.fetch.bytes": 1 << 20,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 16 << 10,
    "fetch.wait.max.ms": 10,  # 500 by default, which is how long the news of an end would take
    "fetch.queue.backoff.ms": 5,
    "log_level": 0,
}
_DENIED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNKNOWN_TOPIC})


class LogSearch:
    """For one thread. refused: topics that the brokers do not let us read. read: how many records were looked at.

    All raise BrokersUnavailable.
    """

    def __init__(self, bootstrap: str) -> None:
        self.refused: set[str] = set()
        self.read = 0
        self._bootstrap = bootstrap
        self._brokers = Brokers(bootstrap)
        self._consumer = Consumer({**client_config(bootstrap), **_READER})
        self._paused: list[TopicPartition] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def places(self, topics: Set[str]) -> Sequence[Place]:
        """Every partition of those topics that there are."""
        found = self._brokers.until_answered(lambda: self._consumer.list_topics(timeout=ANSWER_S)).topics
        return [Place(name, number) for name in topics & found.keys() for number in found[name].partitions]

    def bounds(self, topics: Set[str]) -> Mapping[Place, Bounds]:
        """Of every partition of those topics that there are."""
        return self._brokers.bounds(self.places(topics))

    def ends(self, places: Collection[Place]) -> Mapping[Place, int]:
        """Of what is final."""
        return self._brokers.stable_ends(places)

    def offsets_at(self, ends: Mapping[Place, int], at_ms: int) -> dict[Place, int]:
        """The offset of the first record that was appended at or after `at_ms`; the end if there is none."""
        wanted = [TopicPartition(*place, max(0, at_ms)) for place in ends]
        found = self._brokers.until_answered(lambda: self._offsets_for_times(wanted))
        firsts = {place_of(tp): tp.offset for tp in found}
        return {place: min(firsts[place], end) if firsts[place] >= 0 else end for place, end in ends.items()}

    def _offsets_for_times(self, wanted: list[TopicPartition]) -> list[TopicPartition]:
        found = self._consumer.offsets_for_times(wanted, ANSWER_S) if wanted else []
        for error in (tp.error for tp in found if tp.error):  # else it would look like an end
            raise KafkaException(error)
        return found

    def records_with(self, spans: Iterable[Span], texts: Sequence[bytes]) -> Iterator[ReadRecord | None]:
        """Committed records of `spans` whose value holds one of `texts`; None now and then, for the caller to look up.

        Below the spans' ends no transaction may be open.
        """
        left = {span.place: span for span in spans if span.start < span.end}
        self._consumer.resume(self._paused)  # else they stay so when assigned again
        self._paused.clear()
        self._consumer.assign([TopicPartition(*span.place, span.start) for span in left.values()])
        heard_at = time.monotonic()
        while left:
            messages = self._consumer.consume(_RECORDS_A_CHUNK, _WAIT_S)
            for message in messages:
                yield from self._look(message, left, texts)
            if messages:
                heard_at = time.monotonic()
            elif time.monotonic() > heard_at + _SILENT_S:
                raise BrokersUnavailable(f"no broker gives the records of {sorted(left)[0]}")
            yield None

    def _look(self, message: Any, left: dict[Place, Span], texts: Sequence[bytes]) -> Iterator[ReadRecord]:
        place, error = Place(message.topic(), message.partition()), message.error()
        span = left.get(place)
        if error is not None:
            self._hear(error, place, message.offset(), left)
        elif span is not None:
            offset, value = message.offset(), message.value()
            if offset < span.end:
                self.read += 1
                if value is not None and any(text in value for text in texts):
                    yield ReadRecord(*place, offset, message.key(), value, message.timestamp()[1])
            if offset >= span.end - 1:
                self._end(place, left)

    def _hear(self, error: KafkaError, place: Place, offset: int, left: dict[Place, Span]) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            if place in left and offset >= left[place].end:
                self._end(place, left)
        elif error.code() in _DENIED and place.topic:
            self.refused.add(place.topic)
            for each in [each for each in left if each.topic == place.topic]:
                self._end(each, left)
        elif error.fatal():
            raise explained(self._bootstrap, KafkaException(error))

    def _end(self, place: Place, left: dict[Place, Span]) -> None:
        del left[place]
        with suppress(KafkaException):
            self._consumer.pause([TopicPartition(*place)])
            self._paused.append(TopicPartition(*place))
