"""An account's past over HTTP, without a broker: pages of events, and its state as of a sequence or a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from shared.domain.history_index import EVENTS_PER_ENTRY, key_of
from shared.engine.processors import AggregateProcessor
from shared.http.api import create_api
from shared.http.history import History
from shared.http.peers import Peers
from shared.runtime.positions import Place
from shared.testing.node import MemoryNode
from tests.accounts.api import account_view, routes
from tests.accounts.domain.decide import DECIDER
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from tests.unit.http.services import client_of

pytestmark = pytest.mark.anyio

EVENTS_OF_ANN = 2 * EVENTS_PER_ENTRY + 20
NEIGHBOUR = "neighbour-7"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LATE = 60
"""The event that occurred, by its caller's word, a year before those around it."""


def occurred(sequence: int) -> datetime:
    return BEGIN + timedelta(days=-365 if sequence == LATE else sequence)


def balance(sequence: int) -> int:
    return sum(range(2, sequence + 1))


async def filled() -> MemoryNode:
    """Ann has charges of 2, 3, 4 … cents, by sequence, a day between each; another account's lie between them."""
    node = MemoryNode(TOPOLOGY, [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)])
    async with client_of(create_api(node, routes)) as http:
        for sequence in range(1, EVENTS_OF_ANN + 1):
            path, body = ("", {}) if sequence == 1 else ("/charges", {"amount_cents": sequence})
            headers = {"Occurred-At": occurred(sequence).isoformat()}
            for account_id in ("ann", NEIGHBOUR):
                await http.post(f"/accounts/{account_id}{path}", json=body, headers=headers)
    return node


@pytest.fixture(scope="module")
def node() -> MemoryNode:
    node = asyncio.run(filled())
    assert node.partition(b"ann") == node.partition(NEIGHBOUR.encode())
    return node


@pytest.fixture
async def ann(node: MemoryNode) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_api(node, routes)) as http:
        yield http


async def shown(http: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await http.get("/accounts/ann", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_history_that_the_topology_does_not_declare_is_refused() -> None:
    node = MemoryNode(replace(TOPOLOGY, history=None), [])
    with pytest.raises(ValueError, match=r"^accounts declares no history; fix: give its Topology `history=`, "):
        History(node, Peers("accounts", node.settings), ACCOUNTS, account_view, DECIDER)


@pytest.mark.parametrize("limit", [1, 7, 50, 100])
async def test_pages_hold_every_event_once_and_in_order(ann: httpx.AsyncClient, limit: int) -> None:
    found: list[dict[str, Any]] = []
    cursor: int | None = 0
    while cursor is not None:
        page = (await ann.get("/accounts/ann/events", params={"cursor": cursor, "limit": limit})).json()
        assert 0 < len(page["items"]) <= limit
        found, cursor = found + page["items"], page["cursor"]
    assert [each["sequence"] for each in found] == list(range(1, EVENTS_OF_ANN + 1))
    assert {each["aggregate_id"] for each in found} == {"ann"}
    assert [each["data"].get("amount_cents") for each in found] == [None, *range(2, EVENTS_OF_ANN + 1)]


async def test_after_the_last_event_is_an_empty_page(ann: httpx.AsyncClient) -> None:
    page = (await ann.get("/accounts/ann/events", params={"cursor": EVENTS_OF_ANN + 500})).json()
    assert page == {"items": [], "cursor": None}


async def test_the_row_as_of_every_sequence(ann: httpx.AsyncClient) -> None:
    for sequence in range(1, EVENTS_OF_ANN + 1):
        row = await shown(ann, as_of=sequence)
        assert (row["sequence"], row["balance_cents"]) == (sequence, balance(sequence))


async def test_as_of_a_future_sequence_is_404(ann: httpx.AsyncClient) -> None:
    answer = await ann.get("/accounts/ann", params={"as_of": EVENTS_OF_ANN + 1})
    assert (answer.status_code, answer.json()["detail"]) == (404, f"'ann' has {EVENTS_OF_ANN} events so far")


async def test_the_row_as_of_a_time_is_all_before_the_first_event_that_occurred_later(ann: httpx.AsyncClient) -> None:
    for sequence in range(1, EVENTS_OF_ANN + 1):
        expected = LATE if sequence == LATE - 1 else sequence  # the late event occurred before the one it follows
        if sequence != LATE:
            row = await shown(ann, as_of=occurred(sequence).isoformat().replace("+00:00", "Z"))
            assert (row["sequence"], row["balance_cents"]) == (expected, balance(expected))
    assert (await shown(ann, as_of="2100-01-01T00:00:00Z"))["sequence"] == EVENTS_OF_ANN
    assert (await ann.get("/accounts/ann", params={"as_of": "2020-01-01T00:00:00Z"})).status_code == 404


@pytest.mark.parametrize("as_of", ["0", "-1", "1.5", "yesterday", "2026-01-01T00:00:00", "2026-01-01T00:00:00+02:00"])
async def test_as_of_neither_a_sequence_nor_a_time_in_utc_is_422(http: httpx.AsyncClient, as_of: str) -> None:
    refused = await http.get("/accounts/ann", params={"as_of": as_of})
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["field"]) == (422, "query.as_of")
    assert error["message"] == "must be a sequence from 1, or an instant such as 2026-11-20T10:00:00Z"


async def test_an_unknown_account_has_no_past(http: httpx.AsyncClient) -> None:
    for path in ("/accounts/nobody/events", "/accounts/nobody?as_of=1", "/accounts/nobody?as_of=2026-01-01T00:00:00Z"):
        assert (await http.get(path)).status_code == 404


async def test_events_that_retention_removed_are_410_and_later_ones_are_served(
    ann: httpx.AsyncClient, node: MemoryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = node.partition(b"ann")
    kept = next(
        offset
        for offset, value in enumerate(node.logs[Place(EVENTS.name, partition)])
        if b'"aggregate_id":"ann","sequence":71,' in value
    )
    monkeypatch.setitem(node.removed, Place(EVENTS.name, partition), kept)
    gone = await ann.get("/accounts/ann/events")
    assert (gone.status_code, gone.json()["code"]) == (410, "history.archived")
    assert "only after event 70:" in gone.json()["detail"]
    assert "the archive of accounts" in gone.json()["detail"]
    page = (await ann.get("/accounts/ann/events", params={"cursor": 70})).json()
    assert [each["sequence"] for each in page["items"]] == list(range(71, EVENTS_OF_ANN + 1))
    assert (await ann.get("/accounts/ann", params={"as_of": 60})).status_code == 410
    assert (await shown(ann, as_of=EVENTS_PER_ENTRY))["balance_cents"] == balance(EVENTS_PER_ENTRY)
    assert (await shown(ann, as_of=110))["balance_cents"] == balance(110)


async def test_a_past_that_is_not_yet_read_is_503(
    ann: httpx.AsyncClient, node: MemoryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = node.read
    monkeypatch.setattr("shared.http.history.CATCH_UP_S", 0.05)
    monkeypatch.setattr(node, "read", lambda table, *place: read(table, *place) if table == ACCOUNTS else None)
    answer = await ann.get("/accounts/ann/events")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_only_what_is_not_yet_read_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy aggregate's row is always ahead of its history index."""
    node, unread = await filled(), key_of("ann", 2)
    read = node.read
    monkeypatch.setattr("shared.http.history.CATCH_UP_S", 0.05)
    monkeypatch.setattr(node, "read", lambda table, p, key: None if key == unread else read(table, p, key))
    async with client_of(create_api(node, routes)) as ann:
        assert (await shown(ann, as_of=60))["balance_cents"] == balance(60)
        page = (await ann.get("/accounts/ann/events", params={"cursor": 40, "limit": 60})).json()
        assert [each["sequence"] for each in page["items"]] == list(range(41, 101))
        for later in ("/events?cursor=60", "?as_of=101", "?as_of=2026-01-01T00:00:00Z"):
            assert (await ann.get(f"/accounts/ann{later}")).status_code == 503, later
