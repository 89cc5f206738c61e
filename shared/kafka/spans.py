"""Committed records between two offsets of a partition, read by any process that needs them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import repeat
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from shared.kafka.access import GROUP_ERRORS, IN_NO_GROUP, client_config
from shared.kafka.brokers import SETTLE_DEADLINE_S, Brokers, BrokersUnavailable, explained
from shared.runtime.positions import Place

_AT_ONCE = 16  # partitions of a small topic
_RECORDS_A_CHUNK = 2_000
_FEW = 1_000
_WAIT_S = 0.05  # for a full chunk; the last one always takes this long
_READER = {
    **IN_NO_GROUP,
    "fetch.wait.max.ms": 50,  # how long the news of an end can take; by default 500
    "auto.offset.reset": "error",  # records that retention removed are an error, not skipped
    "max.partition.fetch.bytes": 8 << 20,
    "queued.max.messages.kbytes": 16 << 10,
    "log_level": 0,
}


class Span(NamedTuple):
    """Offsets of a partition from `start` up to, not including, `end`."""

    place: Place
    start: int
    end: int


class WholeRecord(NamedTuple):
    """A record with all that was written. timestamp: in ms since the epoch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Chunk(NamedTuple):
    """Records by offset, each field in a list. timestamps: in ms since the epoch."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]


def read(client: Mapping[str, Any], span: Span, deadline_s: float = SETTLE_DEADLINE_S) -> Iterator[Chunk]:
    """The records of `span`, below whose end no transaction may be open. client: `client_config` of its brokers.

    deadline_s: how long to wait without any progress. Raises BrokersUnavailable.
    """
    return map(_chunk, _messages(client, span, deadline_s))


def read_whole(client: Mapping[str, Any], span: Span) -> Iterator[WholeRecord]:
    """The same records with their headers, one by one. Raises BrokersUnavailable."""
    for messages in _messages(client, span, SETTLE_DEADLINE_S):
        for each in messages:
            yield WholeRecord(each.offset(), each.timestamp()[1], each.key(), each.value(), each.headers() or [])


def _messages(client: Mapping[str, Any], span: Span, deadline_s: float) -> Iterator[Sequence[Any]]:
    with closing(Consumer({**client, **_READER})) as consumer:
        consumer.assign([TopicPartition(*span.place, span.start)])
        position, heard_at = span.start, time.monotonic()
        while position < span.end:
            messages: list[Any] = consumer.consume(_RECORDS_A_CHUNK, _WAIT_S)
            records = list(_fresh(messages, position))
            ends = [_end(message, client) for message in messages if message.error() is not None]
            if records:
                yield records[: bisect_left([each.offset() for each in records], span.end)]
                ends.append(records[-1].offset() + 1)
            if (reached := max(ends, default=position)) > position:
                position, heard_at = reached, time.monotonic()
            elif time.monotonic() > heard_at + deadline_s:
                raise BrokersUnavailable(f"{span.place}: no broker answers for offset {position}")


def read_all(brokers: Brokers, topic: str) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """(partition, key, value) of all records committed so far in a small topic, each partition in order."""
    ends, starts = brokers.settled_ends(topic), brokers.starts(topic)
    spans = [
        Span(Place(topic, number), start, ends[number]) for number, start in starts.items() if start < ends[number]
    ]
    config = client_config(brokers.bootstrap)
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # each waits for a moment behind its last record
        for span, chunks in zip(spans, pool.map(lambda span: [*read(config, span)], spans), strict=True):
            for chunk in chunks:
                yield from zip(repeat(span.place.number), chunk.keys, chunk.values)


def unread(brokers: Brokers, place: Place, position: int, end: int) -> int:
    """How many records lie there, without markers of transactions. Where there are many, the span of their offsets."""
    if end - position > _FEW:
        return end - position
    start = max(position, brokers.starts(place.topic)[place.number])
    chunks = read(client_config(brokers.bootstrap), Span(place, start, end)) if start < end else ()
    return sum(len(chunk.offsets) for chunk in chunks)


def _fresh(messages: Sequence[Any], position: int) -> Iterator[Any]:
    """The records from `position` on, each offset once and in order: librdkafka reads some again when leaders move."""
    for message in messages:
        if message.error() is None and (offset := message.offset()) >= position:
            position = offset + 1
            yield message


def _end(message: Any, client: Mapping[str, Any]) -> int:
    """The partition's end if that is what the message reports; -1 for errors that do not concern reading."""
    error = message.error()
    if error.code() == KafkaError._PARTITION_EOF:
        offset: int = message.offset()
        return offset
    if error.code() in GROUP_ERRORS:
        return -1
    raise explained(client["bootstrap.servers"], KafkaException(error))


def _chunk(records: Sequence[Any]) -> Chunk:
    return Chunk(
        [record.offset() for record in records],
        [record.timestamp()[1] for record in records],
        [record.key() for record in records],
        [record.value() for record in records],
    )
