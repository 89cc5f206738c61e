"""What an operator sees of a parked record, and the command that is made of it with other data."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.dev.issuer import DevIssuer
from shared.domain.personal import SEALED
from shared.domain.row import Row
from shared.engine.wiring import processors_of
from shared.http.api import create_api
from shared.parking.parked import PARKED_CODEC, Parked, Wish
from shared.runtime.settings import Settings
from shared.testing.node import MemoryNode
from tests.accounts.api import routes
from tests.accounts.service import SERVICE
from tests.accounts.topology import COMMANDS, EVENTS, TOPOLOGY
from tests.unit.http.services import client_of, issuer_settings

pytestmark = pytest.mark.anyio

NAME = "Zoë Ångström"
BECAUSE = {"reason": "the amount was sent as text", "by": "ann"}


@pytest.fixture
def node(tmp_path: Path) -> MemoryNode:
    return MemoryNode(TOPOLOGY, processors_of(SERVICE), Settings(data_dir=tmp_path))


@pytest.fixture
async def http(node: MemoryNode) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_api(node, routes)) as client:
        yield client


def command(type_: str, data: object) -> bytes:
    envelope = {
        "command_id": "first",
        "type": type_,
        "schema_version": 1,
        "aggregate_id": "zoe",
        "issued_at": "2026-11-20T10:00:00Z",
        "correlation_id": "story",
        "causation_id": None,
        "data": data,
    }
    return json.dumps(envelope).encode()


def parked(node: MemoryNode, value: bytes, topic: str = COMMANDS.name) -> str:
    """The URL of the dead letter of this record, which is in the log and was parked."""
    partition = node.partition(b"zoe")
    log = node.logs[topic, partition]
    log.append(value)
    offset = len(log) - 1
    id_ = f"accounts/{partition}/@{topic}@{offset}"
    about = {"processor": "accounts", "topic": topic, "partition": partition, "offset": offset}
    row = Row(1, Parked(**about, code="message.bad", reason="…", attempts=1), {}, offset)
    node._rows[TOPOLOGY.parked.name][partition][id_.encode()] = PARKED_CODEC.encode(row)
    return f"/dead-letters/{id_.replace('/', '%2F')}"


def wishes(node: MemoryNode) -> Sequence[Wish]:
    log = node.logs[TOPOLOGY.parking.name, node.partition(b"zoe")]
    return [Wish.model_validate_json(value) for value in log]


def appended(node: MemoryNode) -> Any:
    return json.loads(node.logs[COMMANDS.name, node.partition(b"zoe")][-1])


async def test_the_record_is_shown_and_its_data_where_they_can_be_corrected(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    value = command("account.charge", {"amount_cents": "12"})
    shown = (await http.get(f"{parked(node, value)}/record")).json()
    assert (shown["topic"], shown["offset"]) == (COMMANDS.name, 0)
    assert (shown["value"], shown["data"]) == (value.decode(), {"amount_cents": "12"})
    for other in (b"[1", b"[1]", b"{}", b"\xff", command("account.charge", 5)):
        assert (await http.get(f"{parked(node, other)}/record")).json()["data"] is None
    of_others = await http.get(f"{parked(node, value, 'shop.events.v1')}/record")
    assert (of_others.json()["value"], of_others.json()["data"]) == (value.decode(), None)


async def test_a_corrected_command_belongs_to_the_same_story_and_the_parked_one_is_dropped(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    await http.post("/accounts/zoe")
    letter = parked(node, command("account.charge", {"amount_cents": "12"}))
    correction = {"offset": 1, "data": {"amount_cents": 12}, **BECAUSE}
    first, again = [await http.post(f"{letter}/correct", json=correction) for _ in range(2)]
    assert first.status_code == 202, first.text
    assert again.json() == first.json()
    command_id = first.json()["command_id"]
    sent = appended(node)
    assert (sent["command_id"], sent["causation_id"], sent["correlation_id"]) == (command_id, "first", "story")
    assert sent["issued_at"] == "2026-11-20T10:00:00Z"
    assert (await http.get("/accounts/zoe")).json()["balance_cents"] == 12
    wish = wishes(node)[0]
    assert (wish.action, wish.offset, wish.by) == ("discard", 1, "ann")
    assert wish.reason == f"corrected by the command {command_id}: {BECAUSE['reason']}"


@pytest.mark.parametrize(
    ("offset", "data", "status", "code"),
    [
        (7, {"amount_cents": 12}, 409, "letter.moved"),
        (0, {"amount_cents": "12"}, 422, "request.invalid"),
        (0, {"amount_cents": 12, "more": 1}, 422, "request.invalid"),
    ],
)
async def test_what_no_command_can_be_changes_nothing(
    http: httpx.AsyncClient, node: MemoryNode, offset: int, data: dict[str, object], status: int, code: str
) -> None:
    letter = parked(node, command("account.charge", {"amount_cents": "12"}))
    refused = await http.post(f"{letter}/correct", json={"offset": offset, "data": data, **BECAUSE})
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert wishes(node) == []
    assert appended(node)["command_id"] == "first"


async def test_an_event_is_no_command(http: httpx.AsyncClient, node: MemoryNode) -> None:
    letter = parked(node, command("account.charge", {}), EVENTS.name)
    refused = await http.post(f"{letter}/correct", json={"offset": 0, "data": {}, **BECAUSE})
    assert (refused.status_code, refused.json()["code"]) == (409, "letter.no_command")


async def test_what_retention_has_removed_is_said_to_be(http: httpx.AsyncClient, node: MemoryNode) -> None:
    letter = parked(node, command("account.charge", {}))
    node.removed[COMMANDS.name, node.partition(b"zoe")] = 1
    correction = {"offset": 0, "data": {}, **BECAUSE}
    for gone in (await http.get(f"{letter}/record"), await http.post(f"{letter}/correct", json=correction)):
        assert (gone.status_code, gone.json()["code"]) == (410, "record.removed")


async def test_personal_text_is_never_written_as_it_is_and_what_was_sealed_stays_so(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    letter = parked(node, command("account.open", {"holder": None, "order_limit_cents": "1"}))
    new = {"holder": NAME, "order_limit_cents": 1}
    assert (await http.post(f"{letter}/correct", json={"offset": 0, "data": new, **BECAUSE})).status_code == 202
    sealed = appended(node)["data"]["holder"]
    assert sealed.startswith(SEALED)
    letter = parked(node, command("account.open", {"holder": sealed, "order_limit_cents": "1"}))
    offset = (await http.get(f"{letter}/record")).json()["offset"]
    kept = {"holder": sealed, "order_limit_cents": 1}
    assert (await http.post(f"{letter}/correct", json={"offset": offset, "data": kept, **BECAUSE})).status_code == 202
    assert appended(node)["data"]["holder"] == sealed
    assert (await http.get("/accounts/zoe")).json()["holder"] == NAME


async def test_contents_are_for_whoever_may_see_anybodys_rows_and_the_token_says_who_asks(tmp_path: Path) -> None:
    issuer = DevIssuer(tmp_path)
    node = MemoryNode(TOPOLOGY, processors_of(SERVICE), issuer_settings(tmp_path, TOPOLOGY.service))
    letter = parked(node, command("account.charge", {"amount_cents": "12"}))
    correction = {"offset": 0, "data": {"amount_cents": 12}, **BECAUSE}
    rights = ["operations:read", "operations:write", "accounts:read", "accounts:write", "accounts:any"]
    async with client_of(create_api(node, routes)) as http:

        async def statuses(*lacking: str) -> tuple[int, int]:
            token = issuer.token(TOPOLOGY.service, sorted({*rights} - {*lacking}), "olga")
            http.headers["Authorization"] = f"Bearer {token}"
            seen = await http.get(f"{letter}/record")
            return seen.status_code, (await http.post(f"{letter}/correct", json=correction)).status_code

        assert await statuses("accounts:any") == (403, 403)
        assert await statuses("accounts:read", "accounts:write") == (403, 403)
        assert await statuses("operations:read", "operations:write") == (403, 403)
        assert wishes(node) == []
        assert await statuses() == (200, 202)
    assert [each.by for each in wishes(node)] == ["olga"]


async def test_a_retry_says_who_and_why_if_it_was_told(http: httpx.AsyncClient, node: MemoryNode) -> None:
    letter = parked(node, b"")
    assert (await http.post(f"{letter}/retry")).status_code == 202
    assert (await http.post(f"{letter}/retry", json=BECAUSE)).status_code == 202
    log = node.logs[TOPOLOGY.parking.name, node.partition(b"zoe")]
    assert [(each.reason, each.by) for each in wishes(node)] == [("", ""), (BECAUSE["reason"], "ann")]
    assert ['"by"' in value.decode() for value in log] == [False, True]  # a release before it refuses the field
