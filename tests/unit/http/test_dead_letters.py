"""What an operator sees of a parked record, and what is asked for when it is corrected."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from shared.dev.issuer import DevIssuer
from shared.domain.personal import SEALED
from shared.domain.row import Outcome, Row
from shared.domain.step import fingerprint
from shared.engine.batch import Batch
from shared.engine.wiring import processors_of
from shared.http.api import create_api
from shared.parking.parked import PARKED_CODEC, OperatorRequest, Parked
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.testing.node import MemoryNode
from tests.accounts.api import routes
from tests.accounts.domain.commands import Charge
from tests.accounts.service import SERVICE
from tests.accounts.topology import COMMANDS, EVENTS, TOPOLOGY
from tests.unit.http.services import client_of, issuer_settings

pytestmark = pytest.mark.anyio

NAME = "Zoë Ångström"
BECAUSE = {"reason": "the amount was sent as text", "by": "ann"}
AT_ONCE = {"Prefer": "respond-async"}
GOOD = {"amount_cents": 12}


@pytest.fixture
def node(tmp_path: Path) -> MemoryNode:
    return MemoryNode(TOPOLOGY, processors_of(SERVICE), Settings(data_dir=tmp_path))


@pytest.fixture
async def http(node: MemoryNode) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_api(node, routes)) as client:
        client.headers.update(AT_ONCE)  # a node in memory does nothing with parked records
        yield client


def command(type_: str, data: object, **more: object) -> bytes:
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
    return json.dumps(envelope | more).encode()


def parked(
    node: MemoryNode, value: bytes | None, topic: str = COMMANDS.name, *, code: str = "message.bad", reason: str = "…"
) -> str:
    """The URL of the dead letter of this record, which is in the log and was parked."""
    partition = node.partition(b"zoe")
    log = node.logs[Place(topic, partition)]
    log.append(cast(bytes, value))
    offset = len(log) - 1
    id_ = f"accounts/{partition}/@{topic}@{offset}"
    about = {"processor": "accounts", "topic": topic, "partition": partition, "offset": offset}
    row = Row(1, Parked(**about, code=code, reason=reason, attempts=1), {}, offset)
    node._rows[TOPOLOGY.parked.name][partition][id_.encode()] = PARKED_CODEC.encode(row)
    return f"/dead-letters/{id_.replace('/', '%2F')}"


def _of_other_partitions(node: MemoryNode) -> Iterator[str]:
    return (id_ for id_ in map(str, count()) if node.partition(id_.encode()) != node.partition(b"zoe"))


def requests(node: MemoryNode) -> Sequence[OperatorRequest]:
    log = node.logs[Place(TOPOLOGY.parking.name, node.partition(b"zoe"))]
    return [OperatorRequest.model_validate_json(value) for value in log]


def corrected(node: MemoryNode) -> Any:
    """What the latest correction says."""
    return json.loads(requests(node)[-1].value or "")


async def test_the_record_is_shown_and_its_data_where_they_can_be_corrected(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    for data in ('{"amount_cents": "12"}', '{"amount_cents": 10.0, "n": 9007199254740993}', '{"amount_cents": 1e999}'):
        value = command("account.charge", {}).replace(b"{}", data.encode())
        shown = (await http.get(f"{parked(node, value)}/record")).json()
        assert (shown["topic"], shown["value"], shown["data"]) == (COMMANDS.name, value.decode(), data)
    others = [
        *(None, b"[1", b"[1]", b"{}", b"\xff", b"[" * 100_000),
        command("account.charge", 5),
        command("account.charge", {"amount_cents": float("nan")}),
        command("account.charge", {}, issued_at="yesterday"),
        command("account.charge", {}, schema_version=99),
        command("account.charge", {}, not_before="2030-01-01"),
        command("account.rob", {}),
        command("account.charge", {}, aggregate_id=next(_of_other_partitions(node))),
        command("account.charge", {}).replace(b"{}", b'{"amount_cents": "\xff"}'),
        command("account.charge", {}).replace(b"{}", b'{"amount_cents": %s}' % (b"9" * 5_000)),
    ]
    for other in others:
        found = await http.get(f"{parked(node, other)}/record")
        assert (found.status_code, found.json()["data"]) == (200, None), other
        correction = {"offset": found.json()["offset"], "data": GOOD, **BECAUSE}
        refused = await http.post(
            f"{parked(node, other)}/correct", json=correction | {"offset": correction["offset"] + 1}
        )
        assert (refused.status_code, refused.json()["code"]) == (409, "letter.no_command")
        of_others = (await http.get(f"{parked(node, other, 'shop.events.v1')}/record")).json()
        assert (of_others["value"] is None, of_others["data"]) == (other is None or b"\xff" in other, None)
    assert requests(node) == []


async def test_a_correction_asks_for_the_same_command_with_other_data(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    letter = parked(node, command("account.charge", {"amount_cents": "12"}, expected_sequence=99, causation_id="e"))
    asked = await http.post(f"{letter}/correct", json={"offset": 0, "data": GOOD, **BECAUSE})
    assert (asked.status_code, asked.json()) == (202, {"command_id": "first", "sequence": None}), asked.text
    assert corrected(node) == json.loads(command("account.charge", GOOD, expected_sequence=99, causation_id="e"))
    (request,) = requests(node)
    assert (request.action, request.offset, request.by, request.reason) == ("correct", 0, "ann", BECAUSE["reason"])


@pytest.mark.parametrize(
    ("outcome", "status", "told"),
    [
        ((1, None), 201, {"command_id": "first", "sequence": 1}),
        ((1, "account.closed"), 409, {"code": "account.closed"}),
        ((1, "sequence.mismatch"), 412, {"code": "sequence.mismatch"}),
        ((1, "command.failed"), 500, {"code": "command.failed"}),
        ((1, None, "of another"), 409, {"code": "letter.decided"}),
        ((1, "command.failed", "of another"), 202, {"sequence": None}),
    ],
)
async def test_the_answer_is_what_became_of_the_command(
    http: httpx.AsyncClient,
    node: MemoryNode,
    monkeypatch: pytest.MonkeyPatch,
    outcome: tuple[Any, ...],
    status: int,
    told: dict[str, object],
) -> None:
    letter = parked(node, command("account.charge", {"amount_cents": "12"}))
    sequence, code, digest = (*outcome, fingerprint(Charge(amount_cents=12)))[:3]
    batch = Batch("dead")
    batch.outcomes.append(("zoe", Outcome("first", sequence, code, None, digest)))
    append = node.append

    async def appended_and_decided(*record: Any) -> tuple[int, int]:
        appended = await append(*record)
        node._waiting.committed(batch, {})
        return appended

    monkeypatch.setattr(node, "append", appended_and_decided)
    correction = {"offset": 0, "data": GOOD, **BECAUSE}
    answer = await http.post(f"{letter}/correct", json=correction, headers={"Prefer": "wait=10"})
    assert answer.status_code == status, answer.text
    assert told.items() <= answer.json().items()


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
    assert requests(node) == []


async def test_an_event_is_no_command(http: httpx.AsyncClient, node: MemoryNode) -> None:
    letter = parked(node, command("account.charge", {}), EVENTS.name)
    refused = await http.post(f"{letter}/correct", json={"offset": 0, "data": {}, **BECAUSE})
    assert (refused.status_code, refused.json()["code"]) == (409, "letter.no_command")


async def test_what_retention_has_removed_is_said_to_be(http: httpx.AsyncClient, node: MemoryNode) -> None:
    letter = parked(node, command("account.charge", {}))
    node.removed[Place(COMMANDS.name, node.partition(b"zoe"))] = 1
    correction = {"offset": 0, "data": {}, **BECAUSE}
    for gone in (await http.get(f"{letter}/record"), await http.post(f"{letter}/correct", json=correction)):
        assert (gone.status_code, gone.json()["code"]) == (410, "record.removed")


async def test_personal_text_is_never_written_as_it_is_and_what_was_sealed_stays_so(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    letter = parked(node, command("account.open", {"holder": None, "order_limit_cents": "1"}))
    new = {"holder": NAME, "order_limit_cents": 1}
    assert (await http.post(f"{letter}/correct", json={"offset": 0, "data": new, **BECAUSE})).status_code == 202
    sealed = corrected(node)["data"]["holder"]
    assert sealed.startswith(SEALED)
    letter = parked(node, command("account.open", {"holder": sealed, "order_limit_cents": "1"}))
    offset = (await http.get(f"{letter}/record")).json()["offset"]
    kept = {"holder": sealed, "order_limit_cents": 1}
    assert (await http.post(f"{letter}/correct", json={"offset": offset, "data": kept, **BECAUSE})).status_code == 202
    assert corrected(node)["data"]["holder"] == sealed


@pytest.mark.parametrize("code", ["processor.failed", "command.failed"])
async def test_what_a_bug_says_is_for_whoever_may_see_contents(code: str, tmp_path: Path) -> None:
    """It may quote the record; the kind of bug quotes nothing."""
    issuer = DevIssuer(tmp_path)
    node = MemoryNode(TOPOLOGY, processors_of(SERVICE), issuer_settings(tmp_path, TOPOLOGY.service))
    said = f"ValueError: {NAME}: owes 12"
    letter = parked(node, command("account.charge", GOOD), code=code, reason=said)
    async with client_of(create_api(node, routes)) as http:

        async def reasons(*scopes: str) -> tuple[str, str]:
            headers = {"Authorization": f"Bearer {issuer.token(TOPOLOGY.service, scopes, 'olga')}"}
            (listed,) = (await http.get("/dead-letters", headers=headers)).json()["items"]
            return listed["reason"], (await http.get(letter, headers=headers)).json()["reason"]

        assert await reasons("operations:read") == ("ValueError", "ValueError")
        assert await reasons("operations:read", "accounts:read") == ("ValueError", "ValueError")
        assert await reasons("operations:read", "accounts:read", "accounts:any") == (said, said)


async def test_contents_are_for_whoever_may_see_anybodys_rows_and_the_token_says_who_asks(tmp_path: Path) -> None:
    issuer = DevIssuer(tmp_path)
    node = MemoryNode(TOPOLOGY, processors_of(SERVICE), issuer_settings(tmp_path, TOPOLOGY.service))
    letter = parked(node, command("account.charge", {"amount_cents": "12"}))
    correction = {"offset": 0, "data": {"amount_cents": 12}, **BECAUSE}
    rights = ["operations:read", "operations:write", "accounts:read", "accounts:write", "accounts:any"]
    async with client_of(create_api(node, routes)) as http:
        http.headers.update(AT_ONCE)

        async def statuses(*lacking: str) -> tuple[int, int]:
            token = issuer.token(TOPOLOGY.service, sorted({*rights} - {*lacking}), "olga")
            http.headers["Authorization"] = f"Bearer {token}"
            seen = await http.get(f"{letter}/record")
            return seen.status_code, (await http.post(f"{letter}/correct", json=correction)).status_code

        assert await statuses("accounts:any") == (403, 403)
        assert await statuses("accounts:read", "accounts:write") == (403, 403)
        assert await statuses("operations:read", "operations:write") == (403, 403)
        assert requests(node) == []
        assert await statuses() == (200, 202)
    assert [each.by for each in requests(node)] == ["olga"]


async def test_a_retry_says_who_and_why_if_it_was_told(http: httpx.AsyncClient, node: MemoryNode) -> None:
    letter = parked(node, b"")
    assert (await http.post(f"{letter}/retry")).status_code == 202
    assert (await http.post(f"{letter}/retry", json=BECAUSE)).status_code == 202
    log = node.logs[Place(TOPOLOGY.parking.name, node.partition(b"zoe"))]
    assert [(each.reason, each.by) for each in requests(node)] == [("", ""), (BECAUSE["reason"], "ann")]
    assert ['"by"' in value.decode() for value in log] == [False, True]  # a release before it refuses the field
