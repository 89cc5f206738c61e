"""Many commands in one request: what becomes of each is what becomes of it when it is posted alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from shared.dev.issuer import DevIssuer
from shared.dev.worker import free_port
from shared.domain.message import Command
from shared.engine.wiring import processors_of
from shared.http import lines as lines_module
from shared.http.api import create_api
from shared.http.problems import problem
from shared.kafka.producer import SendUncertain
from shared.privacy.sealing import Sealer
from shared.runtime.settings import Settings
from shared.runtime.traces import Span
from shared.runtime.tracing import Tracing
from shared.testing.node import MemoryNode
from shared.topology.topics import Table, Topic
from tests.accounts.api import routes
from tests.accounts.domain.commands import Charge
from tests.accounts.service import SERVICE
from tests.accounts.topology import EVENTS, TOPOLOGY
from tests.unit.http.services import client_of, issuer_settings
from tests.waiting import Deadline

pytestmark = pytest.mark.anyio

LINES = "application/x-ndjson"
NDJSON = {"Content-Type": LINES}


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owner and caller share a loop on a busy machine: nobody may be given up for being slow to accept."""
    monkeypatch.setattr("shared.http.peers.CONNECT_S", 30.0)


def line(type_: str, aggregate_id: str = "ann", **more: Any) -> dict[str, Any]:
    return {"type": f"account.{type_}", "id": aggregate_id, **more}


def charge(cents: int, aggregate_id: str = "ann", **more: Any) -> dict[str, Any]:
    return line("charge", aggregate_id, body={"amount_cents": cents}, **more)


def body_of(sent: Sequence[object]) -> bytes:
    return b"\n".join(each if isinstance(each, bytes) else json.dumps(each).encode() for each in sent)


async def post(http: httpx.AsyncClient, *sent: object, **headers: str) -> list[dict[str, Any]]:
    answer = await http.post("/accounts/commands", content=body_of(sent), headers=NDJSON | headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson"), answer.text
    answers = [json.loads(each) for each in answer.text.splitlines()]
    assert len(answers) == len(sent)
    return answers


ALONE = [
    ("", None, line("open", idempotency_key='"1\\')),
    ("/charges", {"amount_cents": 5}, charge(5, idempotency_key="2")),
    ("/charges", {"amount_cents": 0}, charge(0, idempotency_key="3")),
    ("/charges", {"amount_cents": 6}, charge(6, idempotency_key="2")),
    ("/charges", {"amount_cents": "5"}, line("charge", body={"amount_cents": "5"}, idempotency_key="4")),
    ("/charges", {"amount_cents": 5, "tip": 1}, line("charge", body={"amount_cents": 5, "tip": 1})),
    ("/closure", None, line("close", idempotency_key="5")),
    ("/payments", {"amount_cents": 5}, line("pay", body={"amount_cents": 5}, idempotency_key="6", if_match=2)),
    ("/closure", None, line("close", idempotency_key="7", if_match=2)),
    ("/closure", None, line("close", idempotency_key="9", body=None, if_match=2)),
    ("/closure", None, line("close", idempotency_key="8", occurred_at="2026-11-20T10:00:00Z")),
]


async def test_each_line_is_answered_as_if_it_were_posted_alone(http: httpx.AsyncClient) -> None:
    together = await post(http, *(sent for _, _, sent in ALONE))
    assert [each["status"] for each in together] == [201, 201, 409, 409, 422, 422, 409, 201, 412, 412, 201]
    async with client_of(create_api(MemoryNode(TOPOLOGY, processors_of(SERVICE)), routes)) as other:
        for (path, body, sent), answered in zip(ALONE, together, strict=True):
            wished = {
                "Idempotency-Key": sent.get("idempotency_key"),
                "If-Match": f'"{sent["if_match"]}"' if "if_match" in sent else None,
                "Occurred-At": sent.get("occurred_at"),
            }
            headers = {name: text for name, text in wished.items() if text}
            alone = await other.post(f"/accounts/ann{path}", json=body, headers=headers)
            told = {"location": alone.headers.get("location"), "position": alone.headers.get("onefold-position")}
            assert answered == {
                "status": alone.status_code,
                **{name: text for name, text in told.items() if text},
                **alone.json(),
            }


BAD = {
    b"{": ("line", "json_invalid"),
    b'"\xff"': ("line", "json_invalid"),
    b"[" * 10_000: ("line", "json_invalid"),
    b"[]": ("line", "dict_type"),
    b"{}": ("line", "union_tag_not_found"),
    b'{"type":"account.charge_order","id":"ann"}': ("line", "union_tag_invalid"),
    b'{"type":"account.open","id":""}': ("id", "value_error"),
    b'{"type":"account.open","id":".."}': ("id", "value_error"),
    b'{"type":"account.open","id":"ann","idempotency_key":"a b"}': ("idempotency_key", "string_pattern_mismatch"),
    b'{"type":"account.open","id":"ann","if_match":"1"}': ("if_match", "int_type"),
    b'{"type":"account.open","id":"ann","if_match":-1}': ("if_match", "greater_than_equal"),
    b'{"type":"account.open","id":"ann","if_match":1000000000000000000}': ("if_match", "less_than"),
    b'{"type":"account.open","id":"ann","occurred_at":1700000000}': ("occurred_at", "value_error"),
    b'{"type":"account.open","id":"ann","ifmatch":1}': ("ifmatch", "extra_forbidden"),
    b'{"type":"account.open","id":"ann","body":[]}': ("body", "model_type"),
    b'{"type":"account.charge","id":"ann"}': ("body", "missing"),
    b'{"type":"account.charge","id":"ann","body":{"amount_cents":1e400}}': ("body.amount_cents", "int_type"),
    b'{"type":"account.open","id":"ann","body":{"holder":"\\ud800"}}': ("line", "json_invalid"),
}


async def test_a_bad_line_says_what_is_wrong_and_stops_no_other(http: httpx.AsyncClient) -> None:
    answers = await post(http, *BAD, line("open"))
    found = [(each["errors"][0]["field"], each["errors"][0]["kind"]) for each in answers[:-1]]
    assert found == [*BAD.values()]
    assert [each["status"] for each in answers] == [422] * len(BAD) + [201]


async def test_metrics_count_lines_by_what_they_are_answered(http: httpx.AsyncClient) -> None:
    await post(http, line("open"), line("open"), charge(5), b"{")
    metrics = (await http.get("/metrics")).text
    for status, number in ((201, 2), (409, 1), (422, 1)):
        assert f'onefold_http_lines_total{{route="/accounts/commands",status="{status}"}} {number}.0' in metrics


async def test_lines_without_a_command_are_no_lines(http: httpx.AsyncClient) -> None:
    sent = b"\n \r\n" + json.dumps(line("open")).encode() + b"\r\n\n"
    answer = await http.post("/accounts/commands", content=sent, headers=NDJSON)
    assert [json.loads(each)["status"] for each in answer.text.splitlines()] == [201]
    assert (await http.post("/accounts/commands", content=b"", headers=NDJSON)).text == ""


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
async def test_a_body_of_another_type_is_not_taken_for_lines(node: MemoryNode, kind: str) -> None:
    """A page in a browser may send text/plain anywhere."""
    unopened = replace(routes, commands={"charges": Charge}, names={})
    async with client_of(create_api(node, unopened)) as http:
        refused = await http.post("/accounts/commands", content=body_of([charge(1)]), headers={"Content-Type": kind})
        assert refused.status_code == 405
        assert not any(node.logs.values())
        assert (await post(http, charge(1)))[0]["status"] == 409


async def test_an_account_may_be_called_commands(http: httpx.AsyncClient) -> None:
    assert (await http.post("/accounts/commands")).json()["sequence"] == 1
    assert (await http.get("/accounts/commands")).json()["account_id"] == "commands"
    assert (await post(http, charge(1, "commands")))[0]["sequence"] == 2


@pytest.mark.parametrize("name", ["Idempotency-Key", "If-Match", "Occurred-At"])
async def test_what_is_of_one_command_is_not_taken_for_many(
    http: httpx.AsyncClient, node: MemoryNode, name: str
) -> None:
    refused = await http.post("/accounts/commands", content=body_of([line("open")]), headers=NDJSON | {name: '"1"'})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, f"header.{name.lower()}")
    assert not any(node.logs.values())


async def test_a_request_has_a_limit_of_lines_and_of_bytes(http: httpx.AsyncClient, node: MemoryNode) -> None:
    for body in (b"1\n" * (lines_module.MAX_LINES + 1), b" " * 300_000):
        assert (await http.post("/accounts/commands", content=body, headers=NDJSON)).status_code == 413
    assert not any(node.logs.values())


async def test_commands_of_one_account_are_decided_in_the_order_of_their_lines(http: httpx.AsyncClient) -> None:
    accounts = [f"a-{number}" for number in range(5)]
    sent = [
        *(line("open", each) for each in accounts),
        *(charge(1, accounts[n % 5], if_match=1 + n // 5) for n in range(100)),
    ]
    answers = await post(http, *sent)
    assert [each["status"] for each in answers] == [201] * 105
    assert [each["sequence"] for each in answers[5:]] == [2 + n // 5 for n in range(100)]


async def test_a_line_that_a_broker_does_not_take_is_503_and_the_others_go_on(
    http: httpx.AsyncClient, node: MemoryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = AsyncMock(side_effect=[SendUncertain("no"), (0, 0), OSError("a bug")])
    monkeypatch.setattr(node, "append", append)
    first, second, third = await post(http, line("open"), line("open"), line("open"), Prefer="respond-async")
    assert (first["status"], first["code"], first["retry_after"]) == (503, "not_ready", "1")
    assert (second["status"], second["sequence"]) == (202, None)
    assert (third["status"], third["code"]) == (500, "internal")


async def test_lines_of_partitions_that_nobody_owns_are_503_and_the_others_go_on(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    node.refuses = {node.partition(b"ann")}
    other = next(name for name in map(str, range(99)) if node.partition(name.encode()) not in node.refuses)
    answers = await post(http, line("open"), line("open", other), line("open"))
    assert [each["status"] for each in answers] == [503, 201, 503]


async def test_a_worker_that_is_being_stopped_begins_no_more(node: MemoryNode) -> None:
    api = create_api(node, routes)
    api.state.closing.set()
    async with client_of(api) as http:
        assert [each["status"] for each in await post(http, line("open"), line("open"))] == [503, 503]
    assert not any(node.logs.values())


async def test_a_line_is_answered_before_the_last_is_begun(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the keys of persons take long; what each line waits for here comes once the first is answered."""
    answered = asyncio.Event()

    async def sealed(_: Sealer, command: Command, person: str) -> Command:
        if not person.endswith("a-0"):
            await answered.wait()
        return command

    monkeypatch.setattr(Sealer, "sealed", sealed)
    sent = [line("open", f"a-{number}", body={"holder": "Ann"}) for number in range(100)]
    port = free_port()
    async with asyncio.timeout(30), serving(create_api(node, routes), port), httpx.AsyncClient() as http:
        url = f"http://127.0.0.1:{port}/accounts/commands"
        async with http.stream("POST", url, content=body_of(sent), headers=NDJSON) as answer:
            answers = answer.aiter_lines()
            assert json.loads(await anext(answers))["status"] == 201
            answered.set()
            assert [json.loads(each)["status"] async for each in answers] == [201] * 99


class Counted(MemoryNode):
    """Notes how many records were being appended at once, at most."""

    appending = most = 0

    async def append(self, topic: Topic, key: bytes, value: bytes, partition: int | None = None) -> tuple[int, int]:
        self.appending += 1
        self.most = max(self.most, self.appending)
        await asyncio.sleep(0)
        self.appending -= 1
        return await super().append(topic, key, value, partition)


async def test_no_more_are_begun_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a client that takes no answers, or a worker that decides nothing, holds up little."""
    monkeypatch.setattr(lines_module, "IN_FLIGHT", 7)
    node = Counted(TOPOLOGY, processors_of(SERVICE))
    async with client_of(create_api(node, routes)) as http:
        await post(http, *[line("open")] * 200)
    assert node.most == 7


class Undecided(MemoryNode):
    """Takes records, and decides none."""

    appended = 0

    async def append(self, topic: Topic, key: bytes, value: bytes, partition: int | None = None) -> tuple[int, int]:
        self.appended += 1
        return 0, self.appended


async def test_lines_that_wait_have_a_budget_of_which_one_client_has_half(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("shared.http.lines.IN_FLIGHT", 7), ("shared.http.api.MAX_IN_FLIGHT", 14)):
        monkeypatch.setattr(name, limit)
    node = Undecided(TOPOLOGY, [])
    api = create_api(node, routes)

    async def sent(http: httpx.AsyncClient) -> httpx.Response:
        return await http.post("/accounts/commands", content=body_of([line("open")] * 50), headers=NDJSON)

    async with client_of(api, "10.0.0.1") as one, client_of(api, "10.0.0.2") as other, client_of(api) as third:
        waiting = asyncio.ensure_future(sent(one))
        await holds(lambda: node.appended == 7)
        refused = await sent(one)
        assert (refused.status_code, "7 to you" in refused.json()["detail"]) == (429, True)
        beside = asyncio.ensure_future(sent(other))
        await holds(lambda: node.appended == 14)
        assert (await sent(third)).status_code == 429
        waiting.cancel(), beside.cancel()
        await asyncio.wait((waiting, beside))
        assert len(await post(one, line("open"), Prefer="respond-async")) == 1


async def test_nothing_more_is_begun_for_a_client_that_has_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of what was begun end, too."""
    monkeypatch.setattr(lines_module, "IN_FLIGHT", 7)
    node, port, told = Undecided(TOPOLOGY, []), free_port(), list[Span]()
    node.tracing = Tracing("http://collector", 1.0, "1")
    monkeypatch.setattr(node.tracing, "tell", told.extend)
    body = body_of([line("open")] * 50)
    lines = ("POST /accounts/commands HTTP/1.1", "Host: x", f"Content-Type: {LINES}", f"Content-Length: {len(body)}")
    async with serving(create_api(node, routes), port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await holds(lambda: node.appended == 7)
        writer.close()
        await holds(lambda: not node._waiting._outcomes)
        assert node.appended == 7
    assert [span.error for span in told] == ["not answered"] * 7
    assert all(span.end_ns > span.begin_ns for span in told)


async def holds(condition: Callable[[], bool]) -> None:
    deadline = Deadline()
    while not condition():
        deadline.check("not yet")
        await asyncio.sleep(0.01)


class Part(MemoryNode):
    """A worker that owns every second partition, of which another owns the others."""

    def __init__(self, settings: Settings, first: int, other: str) -> None:
        super().__init__(TOPOLOGY, processors_of(SERVICE), settings)
        self.refuses = set(range(first, TOPOLOGY.partitions, 2))
        self._other = other

    def owner(self, table: Table, partition: int) -> str | None:
        return self._other if partition in self.refuses else self.settings.url


@asynccontextmanager
async def two(folder: Path, settings: Settings) -> AsyncIterator[tuple[Part, Part, httpx.AsyncClient]]:
    """Two workers, and a client of the first; the other listens on a port."""
    ports = [free_port(), free_port()]
    here, there = (settings.model_copy(update={"http_port": port, "data_dir": folder}) for port in ports)
    nodes = Part(here, 1, there.url), Part(there, 0, here.url)
    apis = [create_api(node, routes) for node in nodes]
    async with (
        serving(apis[1], ports[1]),
        client_of(apis[0]) as http,
        apis[0].router.lifespan_context(apis[0]),
    ):
        yield *nodes, http


@asynccontextmanager
async def serving(api: FastAPI, port: int) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(api, port=port, log_config=None, lifespan="on"))
    task = asyncio.ensure_future(server.serve())
    await holds(lambda: server.started)
    yield
    server.should_exit = True
    await task


async def test_lines_for_another_worker_are_decided_there_and_answered_in_their_place(tmp_path: Path) -> None:
    names = [f"a-{number}" for number in range(40)]
    async with two(tmp_path, Settings()) as (here, there, http):
        sent = [*(line("open", name) for name in names), *(charge(n, name) for n, name in enumerate(names)), b"{"]
        answers = await post(http, *sent)
    assert [each["status"] for each in answers] == [201] * 40 + [409] + [201] * 39 + [422]
    for name, answer in zip(names * 2, answers, strict=False):
        assert answer.get("location", "").startswith(f"/accounts/{name}/commands/")
    for node in (here, there):
        decided = {partition for (topic, partition), log in node.logs.items() if topic == EVENTS.name and log}
        assert decided == set(range(TOPOLOGY.partitions)) - node.refuses


async def test_lines_for_a_worker_of_an_earlier_release_or_one_that_is_gone_are_503(tmp_path: Path) -> None:
    async with two(tmp_path, Settings()) as (here, _, http):
        ours = next(name for name in map(str, range(99)) if here.partition(name.encode()) not in here.refuses)
        theirs = next(name for name in map(str, range(99)) if here.partition(name.encode()) in here.refuses)
        earlier = FastAPI()
        port = free_port()
        for here._other, reason in ((f"http://127.0.0.1:{port}", "404"), ("http://127.0.0.1:1", "does not answer")):
            async with serving(earlier, port):
                answers = await post(http, line("open", theirs), line("open", ours), line("open", theirs))
            assert [each["status"] for each in answers][::2] == [503, 503]
            assert reason in answers[0]["detail"]
            assert answers[1]["status"] in (201, 409)


async def test_an_owner_that_seals_slowly_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they take longer than a worker waits for another, each of them alone does not."""
    turn = asyncio.Lock()

    async def sealed(_: Sealer, command: Command, __: str) -> Command:
        async with turn:
            await asyncio.sleep(0.08)
        return command

    monkeypatch.setattr(Sealer, "sealed", sealed)
    monkeypatch.setattr("shared.http.peers.ANSWER_S", 4.0)
    monkeypatch.setattr("shared.privacy.sealing.ANSWER_S", 0.1)
    async with two(tmp_path, Settings()) as (here, _, http):
        theirs = [name for name in map(str, range(300)) if here.partition(name.encode()) in here.refuses][:75]
        answers = await post(http, *(line("open", name) for name in theirs), Prefer="respond-async")
    assert {each["status"] for each in answers} <= {201, 202}


async def test_lines_of_one_worker_do_not_wait_for_those_of_another(tmp_path: Path) -> None:
    all_appended = asyncio.Event()

    async def held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await all_appended.wait()
        writer.close()

    async with (
        two(tmp_path, Settings()) as (here, _, http),
        await asyncio.start_server(held, "127.0.0.1", 0) as it,
    ):
        here._other = f"http://127.0.0.1:{it.sockets[0].getsockname()[1]}"
        names = [f"a-{number}" for number in range(400)]
        ours = [name for name in names if here.partition(name.encode()) not in here.refuses]
        theirs = next(name for name in names if name not in ours)
        posted = asyncio.ensure_future(post(http, line("open", theirs), *(line("open", name) for name in ours)))
        await holds(lambda: sum(len(log) for (topic, _), log in here.logs.items() if topic == EVENTS.name) == len(ours))
        all_appended.set()
        answers = await posted
    assert [each["status"] for each in answers] == [503, *[201] * len(ours)]


async def test_an_owner_that_does_not_accept_us_says_why(tmp_path: Path) -> None:
    refusal = problem(401, "peer.clock", "fix: synchronise the clocks")

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        headers = b"".join(b"%b: %b\r\n" % header for header in refusal.raw_headers)
        writer.write(b"HTTP/1.1 401 Unauthorized\r\n%b\r\n%b" % (headers, bytes(refusal.body)))
        await writer.drain()
        writer.close()

    async with two(tmp_path, Settings()) as (here, _, http), await asyncio.start_server(refuse, "127.0.0.1", 0) as them:
        here._other = f"http://127.0.0.1:{them.sockets[0].getsockname()[1]}"
        theirs = next(name for name in map(str, range(99)) if here.partition(name.encode()) in here.refuses)
        (answer,) = await post(http, line("open", theirs))
    assert (answer["status"], "fix: synchronise the clocks" in answer["detail"]) == (503, True)


async def test_an_owner_that_dies_while_it_answers_leaves_503_for_the_rest(tmp_path: Path) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {LINES}\r\nContent-Length: 99\r\n\r\n".encode())
        writer.write(b'{"status":201}\n{"stat')
        await writer.drain()
        writer.close()

    async with two(tmp_path, Settings()) as (here, _, http), await asyncio.start_server(die, "127.0.0.1", 0) as dying:
        here._other = f"http://127.0.0.1:{dying.sockets[0].getsockname()[1]}"
        theirs = next(name for name in map(str, range(99)) if here.partition(name.encode()) in here.refuses)
        answers = await post(http, *[line("open", theirs)] * 3)
    assert [each["status"] for each in answers] == [201, 503, 503]


async def test_a_caller_changes_its_own_account_by_any_worker_and_no_other(tmp_path: Path) -> None:
    issuer, names = DevIssuer(tmp_path), [f"a-{number}" for number in range(8)]
    rights = ["accounts:read", "accounts:write"]
    async with two(tmp_path, issuer_settings(tmp_path, "accounts")) as (_, _, http):
        sent = [line("open", name) for name in names]
        for own in names:
            token = issuer.token("accounts", rights, own)
            answers = await post(http, *sent, Authorization=f"Bearer {token}")
            assert [each["status"] for each in answers] == [201 if name == own else 403 for name in names]
            assert {each["code"] for each in answers if each["status"] == 403} == {"owner.other"}
        clerk = issuer.token("accounts", [*rights, "accounts:any"], "clerk")
        assert {each["status"] for each in await post(http, *sent, Authorization=f"Bearer {clerk}")} == {409}
        reader = issuer.token("accounts", ["accounts:read", "accounts:any"], "reader")
        for token, status in ((reader, 403), ("none", 401)):
            refused = await http.post(
                "/accounts/commands", content=body_of(sent), headers=NDJSON | {"Authorization": f"Bearer {token}"}
            )
            assert refused.status_code == status


async def test_a_line_counts_as_a_request(tmp_path: Path) -> None:
    async with two(tmp_path, Settings(rate_limit=2)) as (_, _, http):  # the debt outlasts any machine's 1,000 commands
        first = await post(http, *(line("open", f"a-{number}") for number in range(1_000)))
        assert {each["status"] for each in first} == {201}
        refused = await http.post("/accounts/commands", content=body_of([line("open")]), headers=NDJSON)
    assert (refused.status_code, refused.json()["code"]) == (429, "rate.limited")
    assert int(refused.headers["retry-after"]) > 1


async def test_a_debt_is_run_up_by_one_request_even_if_others_come_at_the_same_time() -> None:
    """Whose head passes before the first one's body has told how much it is worth."""
    node, passed = MemoryNode(TOPOLOGY, processors_of(SERVICE), Settings(rate_limit=2)), asyncio.Barrier(4)
    sent = body_of([line("open", f"a-{number}") for number in range(100)])

    async def held_back() -> AsyncIterator[bytes]:
        await passed.wait()
        yield sent

    async with client_of(create_api(node, routes)) as http, asyncio.timeout(30):
        posted = [http.post("/accounts/commands", content=held_back(), headers=NDJSON) for _ in range(4)]
        answers = await asyncio.gather(*posted)
    assert sorted(each.status_code for each in answers) == [200, 429, 429, 429]
    assert sum(map(len, node.logs.values())) == 200  # commands, and their events


async def test_a_debt_is_its_subjects_and_not_its_neighbours(tmp_path: Path) -> None:
    settings = issuer_settings(tmp_path, "accounts").model_copy(update={"rate_limit": 2})
    issuer = DevIssuer(tmp_path)
    batch, other = (
        {"Authorization": f"Bearer {issuer.token('accounts', ['accounts:write', 'accounts:any'], subject)}"}
        for subject in ("batch", "other")
    )
    async with client_of(create_api(MemoryNode(TOPOLOGY, processors_of(SERVICE), settings), routes)) as http:
        await post(http, *[line("open")] * 1_000, **batch)
        assert (await http.post("/accounts/bob", headers=other)).status_code == 201
        assert (await http.post("/accounts/bob", headers=batch)).status_code == 429


async def test_a_persons_name_in_a_line_is_in_no_record(tmp_path: Path) -> None:
    async with two(tmp_path, Settings()) as (here, there, http):
        sent = [line("open", f"a-{number}", body={"holder": "Grace Hopper"}) for number in range(10)]
        assert {each["status"] for each in await post(http, *sent)} == {201}
        assert (await http.get("/accounts/a-1")).json()["holder"] == "Grace Hopper"
    written = [record for node in (here, there) for log in node.logs.values() for record in log]
    assert len(written) >= 20
    assert not [record for record in written if b"Grace" in record]
