"""What a command's headers ask for, and which are refused."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated
from unittest.mock import AsyncMock

import httpx
import pytest
from fastapi import Depends, FastAPI

from shared.dev.issuer import DevIssuer
from shared.engine.processors import AggregateProcessor
from shared.engine.wiring import processors_of
from shared.http.api import create_api
from shared.http.commands import CommandHeaders, command_headers
from shared.kafka.producer import ProducerFailed, SendError, SendRefused, SendUncertain
from shared.runtime.clock import brokers_clock
from shared.runtime.positions import Place
from shared.testing import node as node_module
from shared.testing.node import MemoryNode
from shared.topology.policy import Policy, Send
from shared.topology.topics import Topic
from tests.accounts.api import routes
from tests.accounts.domain.commands import Charge
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountOpened
from tests.accounts.service import SERVICE
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS, TOPOLOGY
from tests.unit.http.services import client_of, issuer_settings

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("sent", ["20240101", "5", "-1", "1700000000", "1700000000000", "2026-11-20T10:00:00"])
async def test_when_a_command_happened_is_never_guessed(http: httpx.AsyncClient, node: MemoryNode, sent: str) -> None:
    """The event would keep the wrong time for ever."""
    refused = await http.post("/accounts/ann", headers={"Occurred-At": sent})
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["field"]) == (422, "header.occurred-at")
    assert not any(node.logs.values())


class Undecided(MemoryNode):
    """Takes commands, and decides none: their partition moves."""

    async def append(self, topic: Topic, key: bytes, value: bytes, partition: int | None = None) -> tuple[int, int]:
        asyncio.get_running_loop().call_later(0.1, self._waiting.decide_only, {self.partition(key) + 1})
        return self.partition(key), 0


async def test_whose_partition_moves_is_told_that_it_is_not_decided_here() -> None:
    """At once: the next owner decides, and nothing would come until the caller waits no more."""
    async with client_of(create_api(Undecided(TOPOLOGY, processors_of(SERVICE)), routes)) as http, asyncio.timeout(25):
        answer = await http.post("/accounts/ann", headers={"Prefer": "wait=30"})
    assert (answer.status_code, answer.json()["sequence"]) == (202, None)


async def test_what_happens_in_the_future_has_not_happened(http: httpx.AsyncClient, node: MemoryNode) -> None:
    """For ever, the past as of a time and the latest day of insights would end there."""
    ahead = [(datetime.now(UTC) + timedelta(minutes=minutes)).isoformat() for minutes in (10, 2)]
    answers = [await http.post("/accounts/ann", headers={"Occurred-At": each}) for each in ahead]
    assert [answer.status_code for answer in answers] == [422, 201]
    assert "is in the future" in answers[0].json()["errors"][0]["message"]
    assert len(node.logs[Place(EVENTS.name, node.partition(b"ann"))]) == 1


@pytest.mark.parametrize("sent", ["2026-11-20T10:00:00Z", "2026-11-20T12:00:00+02:00", "2026-11-20 10:00:00.000Z"])
async def test_when_a_command_happened_is_kept_in_utc(http: httpx.AsyncClient, node: MemoryNode, sent: str) -> None:
    assert (await http.post("/accounts/ann", headers={"Occurred-At": sent})).status_code == 201
    (event,) = node.logs[Place(EVENTS.name, node.partition(b"ann"))]
    assert json.loads(event)["occurred_at"] == "2026-11-20T10:00:00Z"


@pytest.mark.parametrize(("error", "status"), [(SendUncertain, 503), (ProducerFailed, 503), (SendRefused, 500)])
async def test_a_command_that_may_be_written_is_asked_for_again(
    http: httpx.AsyncClient, node: MemoryNode, monkeypatch: pytest.MonkeyPatch, error: type[SendError], status: int
) -> None:
    monkeypatch.setattr(node, "append", AsyncMock(side_effect=error("no")))
    answer = await http.post("/accounts/ann")
    assert answer.status_code == status
    assert ("Use the same Idempotency-Key again" in answer.json()["detail"]) is (status == 503)


async def test_a_caller_can_not_use_up_the_id_of_a_policys_command(http: httpx.AsyncClient, node: MemoryNode) -> None:
    """It can be worked out from the event that the policy answers, also before that is there; so can the body."""
    welcome = Policy(
        lambda event: [Send(COMMANDS, event.aggregate_id, Charge(amount_cents=7))],
        source=EVENTS,
        events=[AccountOpened],
        commands={COMMANDS: [Charge]},
    )
    await http.post("/accounts/ann", headers={"Idempotency-Key": "open"})
    (opened,) = node.logs[Place(EVENTS.name, node.partition(b"ann"))]
    (sent,) = welcome.sends(opened)
    charge = partial(http.post, "/accounts/ann/charges", json={"amount_cents": 7})
    assert (await charge(headers={"Idempotency-Key": sent.command_id})).status_code == 201
    await node.append(COMMANDS, sent.key, sent.body)
    assert (await http.get("/accounts/ann")).json()["balance_cents"] == 14


async def test_a_caller_that_uses_a_key_twice_is_told_and_nobody_else(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    bodies = [{"order_limit_cents": cents} for cents in (1, 2)]
    first, second = [await http.post("/accounts/ann", json=body, headers={"Idempotency-Key": "one"}) for body in bodies]
    assert (first.status_code, second.json()["code"]) == (201, "idempotency_key.reused")
    assert {topic for topic, _ in node.logs} == {COMMANDS.name, EVENTS.name}


async def test_a_command_for_another_sequence_is_412_and_so_is_each_repeat(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    await http.post("/accounts/ann")
    stale = {"Idempotency-Key": "one", "If-Match": '"2"'}
    charge = partial(http.post, "/accounts/ann/charges", json={"amount_cents": 1})
    refused = await charge(headers=stale)
    assert (refused.status_code, refused.json()["code"]) == (412, "sequence.mismatch")
    assert refused.json()["detail"] == "ann is at sequence 1, and the command was meant for 2"
    assert (await charge()).json()["sequence"] == 2  # so that the command would take effect now
    for again in (await charge(headers=stale), await http.get(refused.headers["location"])):
        assert (again.status_code, again.json()) == (412, refused.json())
    for other in ({"If-Match": '"3"'}, {}):
        reused = await charge(headers={"Idempotency-Key": "one", **other})
        assert (reused.status_code, reused.json()["code"]) == (409, "idempotency_key.reused")
    assert len(node.logs[Place(EVENTS.name, node.partition(b"ann"))]) == 2


@pytest.mark.parametrize("form", ['"{}"', "{etag}", "W/{etag}"])
async def test_the_etag_of_a_read_and_the_sequence_in_an_answer_say_which_row_a_command_is_for(
    http: httpx.AsyncClient, form: str
) -> None:
    assert (await http.post("/accounts/ann", headers={"If-Match": '"0"'})).json()["sequence"] == 1
    for sequence in (1, 2):
        etag = (await http.get("/accounts/ann")).headers["etag"]
        match = {"If-Match": form.format(sequence, etag=etag)}
        charged = await http.post("/accounts/ann/charges", json={"amount_cents": 1}, headers=match)
        assert (charged.status_code, charged.json()["sequence"]) == (201, sequence + 1)
        stale = await http.post("/accounts/ann/charges", json={"amount_cents": 1}, headers=match)
        assert stale.status_code == 412


@pytest.mark.parametrize("sent", ["", "*", "1", '""', '"-1"', '"01"', '"1", "2"', '"1-xyz"', '"99999999999999999999"'])
async def test_what_a_command_is_for_is_never_guessed(http: httpx.AsyncClient, node: MemoryNode, sent: str) -> None:
    refused = await http.post("/accounts/ann", headers={"If-Match": sent})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "header.if-match")
    assert not any(node.logs.values())


@pytest.mark.parametrize("name", ["If-Match", "Idempotency-Key", "Occurred-At"])
async def test_a_header_that_is_sent_twice_is_not_half_heeded(
    http: httpx.AsyncClient, node: MemoryNode, name: str
) -> None:
    values = {"If-Match": ('"0"', '"2"'), "Occurred-At": ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")}
    refused = await http.post("/accounts/ann", headers=[(name, each) for each in values.get(name, ("a", "b"))])
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, f"header.{name.lower()}")
    assert not any(node.logs.values())


async def test_a_key_is_known_after_any_number_of_later_commands(http: httpx.AsyncClient, node: MemoryNode) -> None:
    charge = partial(http.post, "/accounts/ann/charges", json={"amount_cents": 1})
    await http.post("/accounts/ann")
    first = await charge(headers={"Idempotency-Key": "one"})
    for _ in range(50):
        await charge()
    again, found = await charge(headers={"Idempotency-Key": "one"}), await http.get(first.headers["location"])
    assert (again.status_code, again.json()) == (found.status_code, found.json()) == (201, first.json())
    assert (await http.get("/accounts/ann")).json()["balance_cents"] == 51


async def test_a_key_is_another_command_after_its_service_has_forgotten_it(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await http.post("/accounts/ann")
    charge = partial(http.post, "/accounts/ann/charges", json={"amount_cents": 1}, headers={"Idempotency-Key": "one"})
    assert [(await charge()).json()["sequence"] for _ in range(2)] == [2, 2]
    later = brokers_clock.now() + 24 * 3600 + 60
    monkeypatch.setattr(node_module, "brokers_clock", SimpleNamespace(now=lambda: later))
    assert [(await charge()).json()["sequence"] for _ in range(2)] == [3, 3]


async def test_callers_with_one_key_have_an_outcome_each(tmp_path: Path) -> None:
    def caller(subject: str) -> dict[str, str]:
        token = issuer.token("accounts", ["accounts:read", "accounts:write", "accounts:any"], subject)
        return {"Authorization": f"Bearer {token}", "Idempotency-Key": "one"}

    issuer, aggregate = DevIssuer(tmp_path), AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)
    node = MemoryNode(TOPOLOGY, [aggregate], issuer_settings(tmp_path, "accounts"))
    ann, bob, eve = map(caller, ("ann", "bob", "eve"))
    async with client_of(create_api(node, routes)) as http:
        opened = await http.post("/accounts/ann", headers=ann)
        closed = await http.post("/accounts/ann/closure", headers=bob)
        location = "/accounts/ann/commands/one"
        for caller_, sequence, answer in ((ann, 1, opened), (bob, 2, closed)):
            assert answer.headers["location"] == location
            assert answer.json() == {"command_id": "one", "sequence": sequence}
            assert (await http.get(location, headers=caller_)).json() == answer.json()
        assert (await http.get(location, headers=eve)).status_code == 404


async def test_an_operator_finds_an_outcome_by_the_id_in_an_event(http: httpx.AsyncClient, node: MemoryNode) -> None:
    await http.post("/accounts/ann", headers={"Idempotency-Key": "open"})
    (event,) = map(json.loads, node.logs[Place(EVENTS.name, node.partition(b"ann"))])
    assert event["correlation_id"] == "open" != event["causation_id"]
    found = await http.get(f"/accounts/ann/commands/{event['causation_id']}")
    assert found.json() == {"command_id": event["causation_id"], "sequence": 1}


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
