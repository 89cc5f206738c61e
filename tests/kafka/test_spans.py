"""A span is read whole, of committed records only, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from shared.kafka import spans
from shared.kafka.access import client_config
from shared.kafka.brokers import Brokers, BrokersUnavailable
from shared.kafka.spans import Span, read, read_all
from shared.runtime.positions import Place

pytestmark = pytest.mark.broker


def values(bootstrap: str, span: Span) -> dict[int, bytes | None]:
    chunks = list(read(client_config(bootstrap), span))
    return {offset: value for chunk in chunks for offset, value in zip(chunk.offsets, chunk.values, strict=True)}


def test_the_committed_records_between_two_offsets_are_read(
    bootstrap: str, topic: str, put: Callable[..., None]
) -> None:
    put(b"a", b"b")  # and the transaction's marker, which has offset 2
    put(b"never", abort=True)
    put(None, b"c", b"d")
    put(b"another partition's", partition=1)
    whole = Span(Place(topic, 0), 0, 9)
    assert values(bootstrap, whole) == {0: b"a", 1: b"b", 5: None, 6: b"c", 7: b"d"}
    assert values(bootstrap, whole._replace(start=1, end=7)) == {1: b"b", 5: None, 6: b"c"}
    assert values(bootstrap, whole._replace(start=3, end=5)) == {}
    assert list(read_all(Brokers(bootstrap), topic)) == [
        *((0, value or b"gone", value) for value in (b"a", b"b", None, b"c", b"d")),
        (1, b"another partition's", b"another partition's"),
    ]


def test_a_long_span_comes_in_order_and_in_chunks(bootstrap: str, topic: str, put: Callable[..., None]) -> None:
    put(*(b"%d" % number for number in range(5_000)))
    chunks = list(read(client_config(bootstrap), Span(Place(topic, 0), 0, 5_001)))
    assert len(chunks) > 1
    assert [offset for chunk in chunks for offset in chunk.offsets] == list(range(5_000))
    assert {len(chunk.keys) - len(chunk.timestamps) for chunk in chunks} == {0}
    assert all(timestamp > 1.6e12 for chunk in chunks for timestamp in chunk.timestamps)


def test_records_that_are_delivered_twice_are_read_once(
    bootstrap: str, topic: str, put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(b"a", b"b", b"c")
    consume = Consumer.consume

    class Twice(Consumer):
        """As when a leader moves: what was delivered begins again in the middle."""

        def consume(self, *limits: Any) -> list[Any]:
            messages = consume(self, *limits)
            return [*messages[:2], *messages]

    monkeypatch.setattr(spans, "Consumer", Twice)
    assert values(bootstrap, Span(Place(topic, 0), 0, 4)) == {0: b"a", 1: b"b", 2: b"c"}
    ((partition, *_), *others) = read_all(Brokers(bootstrap), topic)
    assert (partition, len(others)) == (0, 2)


def test_records_that_retention_removed_are_missed(bootstrap: str, topic: str, put: Callable[..., None]) -> None:
    put(b"a", b"b")
    put(b"c")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        deleted.result(30)
    with pytest.raises(BrokersUnavailable):
        values(bootstrap, Span(Place(topic, 0), 0, 5))
    assert values(bootstrap, Span(Place(topic, 0), 2, 5)) == {3: b"c"}


def test_an_end_that_is_never_reached_is_reported(bootstrap: str, topic: str, put: Callable[..., None]) -> None:
    put(b"a")
    with pytest.raises(BrokersUnavailable, match=f"{topic}/0: no broker answers for offset 2"):
        list(read(client_config(bootstrap), Span(Place(topic, 0), 0, 9), deadline_s=3.0))
