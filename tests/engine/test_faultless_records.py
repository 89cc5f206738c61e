"""A store that can't be read stops the batch, and no record becomes a dead letter; a row stops only its key."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.domain.errors import NotReady
from shared.engine.batch import Batch
from shared.engine.processors import AggregateProcessor
from shared.tables.rows import Rows
from shared.tables.store import RowStore, StoreFailed
from tests.accounts.domain.commands import OpenAccount
from tests.accounts.domain.decide import DECIDER
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY

CODEC = DECIDER.command_codec
OPEN = CODEC.encode(
    CODEC.wrap(OpenAccount(), command_id="c1", aggregate_id="a-1", issued_at=datetime(2026, 1, 1, tzinfo=UTC))
)
RECORD = SimpleNamespace(topic=ACCOUNTS.source.name, partition=3, offset=17, key=b"a-1", value=OPEN, timestamp=0)


def _failed(_partition: int, _key: bytes) -> bytes | None:
    raise StoreFailed(cast(RowStore, SimpleNamespace(table_name="accounts")), 3, OSError("block checksum mismatch"))


def _closed(_partition: int, _key: bytes) -> bytes | None:
    raise NotReady("the partition is moving to another worker")


def _of_another_shape(_partition: int, _key: bytes) -> bytes | None:
    return b'{"sequence": 1, "state": {"phase": "frozen"}, "outcomes": {}, "offset": 4}'


def _of_a_later_release(_partition: int, _key: bytes) -> bytes | None:
    return b'{"sequence": 1, "state": {"phase": "open", "frozen": true}, "outcomes": {}, "offset": 4}'


_SHAPE = (
    r"^changelog/3: the row of 'a-1' can't be read: state: Input tag 'frozen' .*; fix: if a later release wrote it,"
)
_LATER = r"^changelog/3: the row of 'a-1' can't be read: state.open.frozen: Extra inputs are not permitted; fix: if "


@pytest.mark.parametrize(
    ("read", "failure", "said"),
    [
        (_failed, StoreFailed, "checksum"),
        (_closed, NotReady, "moving"),
    ],
)
def test_a_store_that_cannot_be_read_stops_the_batch(read: Any, failure: type[Exception], said: str) -> None:
    batch = Batch(TOPOLOGY.dead_letters.name)
    rows = Rows("changelog", cast(RowStore, SimpleNamespace(get=read)), 3, 8, DECIDER.row_codec)
    with pytest.raises(failure, match=said):
        AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS).attempt(RECORD, rows, batch)
    assert not batch.records
    assert not batch.outcomes


@pytest.mark.parametrize(("read", "said"), [(_of_another_shape, _SHAPE), (_of_a_later_release, _LATER)])
def test_a_row_that_cannot_be_read_holds_up_its_key(read: Any, said: str) -> None:
    aggregate, batch = AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS), Batch(TOPOLOGY.dead_letters.name)
    rows = Rows("changelog", cast(RowStore, SimpleNamespace(get=read)), 3, 8, DECIDER.row_codec)
    failure = aggregate.attempt(RECORD, rows, batch)
    assert failure is not None
    assert failure.code == "row.unreadable"
    assert re.match(said, failure.reason)
    assert aggregate.holds_up(failure)
    assert (batch.records, batch.outcomes, rows.changed) == ([], [], {})
