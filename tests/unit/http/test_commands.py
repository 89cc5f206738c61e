"""What a command's headers ask for, and which are refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated
from unittest.mock import AsyncMock

import httpx
import pytest
from fastapi import Depends, FastAPI

from services.accounts.topology import EVENTS
from shared.http.commands import CommandHeaders, command_headers
from shared.kafka.producer import ProducerFailed, SendError, SendRefused, SendUncertain
from shared.testing.node import MemoryNode
from tests.unit.http.services import client_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("sent", ["20240101", "5", "-1", "1700000000", "1700000000000", "2026-11-20T10:00:00"])
async def test_when_a_command_happened_is_never_guessed(http: httpx.AsyncClient, node: MemoryNode, sent: str) -> None:
    """The event would keep the wrong time for ever."""
    refused = await http.post("/accounts/ann", headers={"Occurred-At": sent})
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["field"]) == (422, "header.occurred-at")
    assert not any(node.logs.values())


async def test_what_happens_in_the_future_has_not_happened(http: httpx.AsyncClient, node: MemoryNode) -> None:
    """For ever, the past as of a time and the latest day of insights would end there."""
    ahead = [(datetime.now(UTC) + timedelta(minutes=minutes)).isoformat() for minutes in (10, 2)]
    answers = [await http.post("/accounts/ann", headers={"Occurred-At": each}) for each in ahead]
    assert [answer.status_code for answer in answers] == [422, 201]
    assert "is in the future" in answers[0].json()["errors"][0]["message"]
    assert len(node.logs[EVENTS.name, node.partition(b"ann")]) == 1


@pytest.mark.parametrize("sent", ["2026-11-20T10:00:00Z", "2026-11-20T12:00:00+02:00", "2026-11-20 10:00:00.000Z"])
async def test_when_a_command_happened_is_kept_in_utc(http: httpx.AsyncClient, node: MemoryNode, sent: str) -> None:
    assert (await http.post("/accounts/ann", headers={"Occurred-At": sent})).status_code == 201
    (event,) = node.logs[EVENTS.name, node.partition(b"ann")]
    assert json.loads(event)["occurred_at"] == "2026-11-20T10:00:00Z"


@pytest.mark.parametrize(("error", "status"), [(SendUncertain, 503), (ProducerFailed, 503), (SendRefused, 500)])
async def test_a_command_that_may_be_written_is_asked_for_again(
    http: httpx.AsyncClient, node: MemoryNode, monkeypatch: pytest.MonkeyPatch, error: type[SendError], status: int
) -> None:
    monkeypatch.setattr(node, "append", AsyncMock(side_effect=error("no")))
    answer = await http.post("/accounts/ann")
    assert answer.status_code == status
    assert ("Use the same Idempotency-Key again" in answer.json()["detail"]) is (status == 503)


@pytest.mark.parametrize(
    ("prefer", "wait_s"),
    [
        ([], 10),
        (["wait=5"], 5),
        (['Wait = "5"'], 5),
        (["wait=99999"], 30),
        (["wait=" + "9" * 5000], 30),
        (["wait=5, wait=7"], 5),
        (["handling=strict", "wait=5"], 5),
        (["wait=5", "respond-async"], 0),
        (["wait=5, Respond-Async; x=1"], 0),
        (['foo="respond-async"'], 10),
        (['foo="a, respond-async, wait=1"; bar="b, wait=2", wait=5'], 5),
        ([r'foo="a\", wait=1, \\", wait=5'], 5),
        (['foo="a, wait=1', "wait=5"], 10),
        (['"' * 4000 + "wait=1", "wait=5"], 5),
        (["not-respond-async, await=5, wait=-1, wait=5s, wait="], 10),
    ],
)
async def test_preferences_are_read_whole_from_every_line(prefer: list[str], wait_s: float) -> None:
    api = FastAPI()

    @api.get("/")
    async def asked(headers: Annotated[CommandHeaders, Depends(command_headers)]) -> float:
        return headers.wait_s

    async with client_of(api) as http:
        assert (await http.get("/", headers=[("Prefer", line) for line in prefer])).json() == wait_s
