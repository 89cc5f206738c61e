"""The key of a view's row is a legal id; a record with any other key becomes a dead letter and does no other harm."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.domain.envelope import EventCodec
from shared.domain.message import Event
from shared.domain.row import Row, RowCodec
from shared.engine.batch import Batch
from shared.engine.processors import ProjectionProcessor
from shared.kafka.murmur2 import partition_of
from shared.parking.parked import Failure
from shared.tables import indexing
from shared.tables.rows import ENCODED_AT_ONCE, Rows
from shared.tables.store import OFFSET_KEY, ORIGIN_KEY, RowStore
from shared.topology.projection import Projection
from shared.topology.topics import Table, Topic

PARTITIONS = 8
FACTS = Topic("shop.events.v1")
VIEW = Table("view", source=FACTS, indexes=("seen",))


class Seen(Event):
    TYPE = "shop.seen"


BODY = EventCodec([Seen]).write(
    Seen(),
    event_id="e-1",
    aggregate_id="a-1",
    sequence=1,
    occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
    correlation_id="story",
)
COUNT = ProjectionProcessor(
    Projection(VIEW, lambda view, *_: {"seen": view["seen"] + 1}, initial={"seen": 0}, events=(Seen,), state=dict)
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RowStore]:
    store = RowStore(tmp_path, VIEW.name, VIEW.indexes)
    yield store
    for partition in range(PARTITIONS):
        store.close(partition)


@pytest.mark.parametrize("key", [b"a-1", "ä".encode(), b"1997-01-18", b"x" * 128])
def test_a_legal_id_names_a_row(store: RowStore, key: bytes) -> None:
    assert _counted(store, key) is None
    assert store.get(_home(key), key)


@pytest.mark.parametrize(
    "key",
    [
        OFFSET_KEY,
        ORIGIN_KEY,
        indexing.entry("seen", 1, b"a-0"),
        b"",
        b"a\nb",
        b"\x7f",
        "\x85".encode(),
        b"\xff\xfe",
        b"x" * 129,
        b"..",
    ],
)
def test_a_record_with_any_other_key_is_bad(store: RowStore, key: bytes) -> None:
    failure = _counted(store, key)
    assert failure is not None
    assert failure.code == "message.bad"
    assert "its key" in failure.reason


def test_rows_are_encoded_as_each_would_be_alone(store: RowStore) -> None:
    codec = cast(RowCodec[Any], COUNT.codec)
    rows = Rows("changelog", store, 0, PARTITIONS, codec)
    alone: dict[bytes, bytes | None] = {}
    for number in range(2 * ENCODED_AT_ONCE + 1):
        key, row = b"a-%d" % number, Row(number, {"seen": number}, {}, number)
        rows.put(key, row if number % 10 else None)
        alone[key] = codec.encode(row) if number % 10 else None
    assert list(rows.encoded().items()) == list(alone.items())


def _home(key: bytes) -> int:
    return partition_of(key, PARTITIONS)


def _counted(store: RowStore, key: bytes) -> Failure | None:
    """The failure, if any, of an event with this key, in a store that already holds rows and index entries."""
    partition, codec = _home(key), cast(RowCodec[Any], COUNT.codec)
    store.open(partition, "changelog-id")
    store.apply(partition, {b"a-0": codec.encode(Row(1, {"seen": 1}, {}, 16))}, 41)
    record = SimpleNamespace(topic=FACTS.name, partition=partition, offset=17, key=key, value=BODY)
    rows = Rows("changelog", store, partition, PARTITIONS, codec)
    failure = COUNT.attempt(record, rows, Batch("dead-letters"))
    store.apply(partition, rows.encoded(), 42)
    return failure
