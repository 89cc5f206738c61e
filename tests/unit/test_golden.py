"""Golden records reveal changes that make an old message unreadable, or a new one different."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import Field, create_model

from bench.domain import DECIDER, Sell, Sold
from shared.testing.golden import Golden

SOLD: dict[str, Any] = {
    "event_id": "event-1",
    "type": "bench.sold",
    "schema_version": 1,
    "aggregate_id": "customer-1",
    "sequence": 1,
    "occurred_at": "1997-01-18T00:00:00Z",
    "correlation_id": "story-1",
    "causation_id": "wish-1",
    "data": {"amount_cents": 2933},
}
SELL: dict[str, Any] = {
    "command_id": "wish-1",
    "type": "bench.sell",
    "schema_version": 1,
    "aggregate_id": "customer-1",
    "issued_at": "1997-01-18T00:00:00Z",
    "correlation_id": "story-1",
    "causation_id": None,
    "data": {"amount_cents": 2933},
}


Write = Callable[[str, dict[str, Any]], None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, record: dict[str, Any]) -> None:
        (tmp_path / f"{name}.json").write_text(json.dumps(record))

    write("bench.sold.v1", SOLD)
    write("bench.sell.v1", SELL)
    return write


def test_records_that_are_all_there_and_read_and_written_alike_pass(tmp_path: Path, write: Write) -> None:
    Golden(tmp_path, DECIDER).check()


def test_a_message_without_a_record_is_noticed(tmp_path: Path, write: Write) -> None:
    (tmp_path / "bench.sell.v1.json").unlink()
    with pytest.raises(AssertionError, match=r"bench\.sell\.v1"):
        Golden(tmp_path, DECIDER).check()


def test_a_record_without_a_message_is_noticed(tmp_path: Path, write: Write) -> None:
    write("bench.sold.v2", SOLD | {"schema_version": 2})
    with pytest.raises(AssertionError, match=r"bench\.sold\.v2"):
        Golden(tmp_path, DECIDER).check()


def test_a_message_that_is_written_differently_is_noticed(tmp_path: Path, write: Write) -> None:
    write("bench.sold.v1", SOLD | {"data": {"amount_cents": 2933, "currency": "USD"}})
    with pytest.raises(AssertionError, match=r"bench\.sold is written otherwise"):
        Golden(tmp_path, DECIDER).check()


def test_a_message_whose_integers_become_floats_is_noticed(tmp_path: Path, write: Write) -> None:
    class FinerSale(Sold):
        amount_cents: float  # type: ignore[assignment]

    with pytest.raises(AssertionError, match=r"bench\.sold is written otherwise"):
        Golden(tmp_path, replace(DECIDER, events=(FinerSale,))).check()


def test_a_message_with_a_new_optional_field_keeps_its_record(tmp_path: Path, write: Write) -> None:
    class NotedSale(Sold):
        note: str | None = None

    Golden(tmp_path, replace(DECIDER, events=(NotedSale,))).check()


def test_a_message_with_a_new_required_field_is_noticed(tmp_path: Path, write: Write) -> None:
    class NotedSale(Sold):
        note: str

    with pytest.raises(
        AssertionError, match=r"bench.sold.v1 can.t be read any more: data.note: .*; fix: give a new field a default"
    ):
        Golden(tmp_path, replace(DECIDER, events=(NotedSale,))).check()


def test_a_record_that_cannot_be_read_any_more_is_noticed(tmp_path: Path, write: Write) -> None:
    write("bench.sold.v1", SOLD | {"data": {"cents": 2933}})
    with pytest.raises(AssertionError, match="amount_cents"):
        Golden(tmp_path, DECIDER).check()


class Size(Enum):
    SMALL = "s"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Decimal, "1.50"),
        (Size, "s"),
        (UUID, "12345678-1234-5678-1234-567812345678"),
        (timedelta, "PT1H"),
        (tuple[int, ...], [1]),
    ],
)
def test_a_command_that_http_would_refuse_is_noticed(tmp_path: Path, write: Write, kind: Any, text: Any) -> None:
    """FastAPI parses the body first, so a strict field gets text, or a list."""
    write("bench.sell.v1", SELL | {"data": {"amount_cents": 2933, "more": text}})
    strict = create_model("SellMore", __base__=Sell, more=(kind, ...))
    with pytest.raises(AssertionError, match=r"bench\.sell gets 422 over HTTP: more: .*; fix: .*strict=False"):
        Golden(tmp_path, replace(DECIDER, commands=(strict,))).check()
    lax = create_model("SellMore", __base__=Sell, more=(Annotated[kind, Field(strict=False)], ...))
    Golden(tmp_path, replace(DECIDER, commands=(lax,))).check()
