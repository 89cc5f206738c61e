"""The headers of every answer, the requests that are refused, and the limits on their rate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from sqlalchemy.dialects import registry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.dev.issuer import DevIssuer
from shared.domain.decider import Decider
from shared.domain.message import Command, Event
from shared.domain.state import State
from shared.engine.processors import AggregateProcessor
from shared.http import limits
from shared.http.api import create_api
from shared.http.commands import Commands, Headers
from shared.http.health import PROBES
from shared.http.limits import BodyLimit, Buckets, HeldBytes, TimeLimit
from shared.http.node import Node
from shared.http.paths import PathId
from shared.http.peers import Peers
from shared.runtime.settings import DEV_PEER_SECRET, Settings
from shared.testing.node import MemoryNode
from shared.topology.topics import Table, Topic, Topology
from tests.accounts.api import routes
from tests.accounts.topology import TOPOLOGY
from tests.unit.http.services import SERVICES, api_of, client_of, issuer_settings, own_api

pytestmark = pytest.mark.anyio

registry.register("elsewhere", "sqlalchemy.dialects.sqlite.pysqlite", "SQLiteDialect_pysqlite")  # no driver is needed
PROD = Settings.model_validate(
    {
        "env": "prod",
        "replication": 3,
        "min_isr": 2,
        "auth": "on",
        "auth_issuer": "https://issuer.example",
        "auth_audience": "accounts",
        "auth_jwks": "https://issuer.example/keys",
        "peers": "127.0.0.0/8",
        "peer_secret": DEV_PEER_SECRET + "-not",
        "rate_limit": 1000,
        "person_keys": "elsewhere://",
    }
)
EXPECTED = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
ASKED = [
    ("GET", "/healthz", 200),
    ("GET", "/readyz", 200),
    ("GET", "/cluster", 200),
    ("GET", "/metrics", 200),
    ("GET", "/openapi.json", 200),
    ("GET", "/nowhere", 404),
    ("GET", "/accounts/nobody", 404),
    ("GET", "/accounts?limit=0", 422),
    ("DELETE", "/accounts/nobody", 405),
    ("GET", "/accounts/" + "a" * 9000, 414),
    ("GET", "/accounts/a?x=" + "a" * 9000, 414),
    ("POST", "/accounts/a", 201),
    ("POST", "/accounts/a", 409),
]


async def ask(node: MemoryNode, method: str, path: str, address: str = "127.0.0.1") -> httpx.Response:
    async with client_of(create_api(node, routes), address) as http:
        return await http.request(method, path)


async def test_every_answer_has_the_headers(http: httpx.AsyncClient) -> None:
    for method, path, status in ASKED:
        answer = await http.request(method, path)
        assert answer.status_code == status, (path[:50], answer.text)
        found = {name: answer.headers.get(name) for name in EXPECTED}
        assert found == EXPECTED, path[:50]
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == status


@pytest.mark.parametrize("service", SERVICES)
async def test_every_service_has_the_headers(service: str) -> None:
    async with client_of(api_of(service)) as http:
        for path in ("/healthz", "/cluster", f"/{service}", "/nowhere", "/" + "a" * 9000):
            answer = await http.get(path)
            assert {name: answer.headers.get(name) for name in EXPECTED} == EXPECTED, path[:50]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/accounts/ann", "GET, HEAD, POST"),
        ("/accounts", "GET, HEAD"),
        ("/accounts/ann/charges", "POST"),
        ("/healthz", "GET, HEAD"),
    ],
)
async def test_another_method_is_answered_with_all_that_the_path_has(
    http: httpx.AsyncClient, path: str, allowed: str
) -> None:
    for method in ("DELETE", "OPTIONS"):
        refused = await http.request(method, path)
        assert (refused.status_code, refused.headers["allow"]) == (405, allowed)


SHOP = "https://shop.example"


async def test_pages_of_the_named_origins_alone_may_call_and_read_what_they_need() -> None:
    settings = Settings(cors_origins=f"https://a.example,{SHOP}", rate_limit=1)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,idempotency-key"}
    async with client_of(own_api(settings)) as http:
        allowed = await http.options("/accounts/ann", headers={"Origin": SHOP, **asked})
        refused = await http.options("/accounts/ann", headers={"Origin": "https://other.example", **asked})
        got = await http.post("/accounts/ann", headers={"Origin": SHOP})
        answers = [await http.get("/accounts/ann", headers={"Origin": SHOP}) for _ in range(20)]
    assert allowed.headers["access-control-allow-origin"] == SHOP
    assert allowed.headers["access-control-allow-headers"] == "authorization,idempotency-key"
    assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (400, False)
    assert 429 in {answer.status_code for answer in answers}
    assert {answer.headers["access-control-allow-origin"] for answer in (got, *answers)} == {SHOP}
    shown = {name for answer in (got, *answers) for name in answer.headers if name.startswith("onefold-")}
    assert "onefold-position" in shown
    assert shown <= {*got.headers["access-control-expose-headers"].lower().split(", ")}


async def test_head_is_answered_as_get_without_the_body(http: httpx.AsyncClient) -> None:
    await http.post("/accounts/ann")
    for path in ("/healthz", "/readyz", "/accounts/ann", "/accounts/ann?wait=1", "/accounts", "/accounts/nobody", "/a"):
        got, head = await http.get(path), await http.head(path)
        assert (head.status_code, head.headers, head.content) == (got.status_code, got.headers, b""), path
    refused = await http.head("/accounts/ann/charges")
    assert (refused.status_code, refused.headers["allow"], refused.content) == (405, "POST", b"")


async def test_documentation_pages_are_served_in_dev_only() -> None:
    for path in ("/docs", "/openapi.json", "/redoc"):
        assert (await ask(MemoryNode(TOPOLOGY, [], PROD), "GET", path)).status_code == 404
    assert (await ask(MemoryNode(TOPOLOGY, []), "GET", "/docs")).status_code == 200


async def test_outside_dev_browsers_are_told_to_stay_on_https() -> None:
    answer = await ask(MemoryNode(TOPOLOGY, [], PROD), "GET", "/healthz")
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


async def test_a_bug_is_500_without_its_trace(
    http: httpx.AsyncClient, node: MemoryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the secret of the code")

    monkeypatch.setattr(node, "read", broken)
    answer = await http.get("/accounts/ann")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert {name: answer.headers[name] for name in EXPECTED} == EXPECTED


@pytest.mark.parametrize(
    "body", [b'{"amount_cents": 1}\xff', b"[" * 100_000, b"9" * 5000], ids=["bytes", "deep", "long"]
)
async def test_a_body_that_json_cannot_hold_is_422(http: httpx.AsyncClient, body: bytes) -> None:
    answer = await http.post("/accounts/ann/charges", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"], answer.json()["errors"][0]["field"]) == (
        422,
        "request.invalid",
        "body",
    )


class Inner(BaseModel, extra="forbid"):
    weight: float = 0
    inner: Inner | None = None


class Ship(Command):
    TYPE = "parcel.ship"

    label: Any = None
    inner: Inner = Inner()


class Shipped(Event):
    TYPE = "parcel.shipped"


class Parcel(State):
    pass


SHIPPING = Decider(
    decide=lambda _command, _parcel: [Shipped()],
    evolve=lambda parcel, _event: parcel,
    initial=Parcel(),
    commands=(Ship,),
    events=(Shipped,),
    state=Parcel,
)
COMMANDS, EVENTS = Topic("parcels.commands.v1"), Topic("parcels.events.v1")
PARCELS = Table("parcels", source=COMMANDS)


def shipping(node: Node, peers: Peers) -> list[APIRouter]:
    router = APIRouter()
    intake = Commands(node, peers, SHIPPING, PARCELS, path="/parcels")

    @router.post("/parcels/{parcel}")
    async def ship(request: Request, parcel: PathId, body: Ship, headers: Headers) -> Response:
        return await intake.submit(request, parcel, body, headers)

    return [router]


def nested(levels: int) -> bytes:
    return b'{"inner":' * levels + b"{}" + b"}" * levels


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"inner": {"weight": 1}}', 201),
        (nested(50), 201),
        (b'{"label": "\\ud800"}', 422),
        (b'{"label": {"\\ud800": 1}}', 422),
        (b'{"inner": {"weight": NaN}}', 422),
        (b'{"inner": {"weight": 1e999}}', 422),
        (b'{"label": ' + b"[" * 220 + b"]" * 220 + b"}", 422),
        (b'{"label": ' + b"[" * 253 + b"]" * 253 + b"}", 422),
        (nested(220), 422),
    ],
    ids=lambda each: repr(each)[:30],
)
async def test_a_command_that_its_readers_cannot_take_is_422_and_not_sent(body: bytes, status: int) -> None:
    """FastAPI takes all of them."""
    node = MemoryNode(
        Topology("parcels", topics=(COMMANDS, EVENTS), tables=(PARCELS,)),
        [AggregateProcessor(SHIPPING, table=PARCELS, events=EVENTS)],
    )
    async with client_of(create_api(node, shipping)) as http:
        answer = await http.post("/parcels/p", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json().get("code")) == (status, "request.invalid" if status == 422 else None)
    appended = [topic for (topic, _), log in node.logs.items() if log]
    assert appended == ([COMMANDS.name, EVENTS.name] if status == 201 else [])


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/accounts", {}, 200),
        ("/accounts", {"Onefold-Peer": "a liar's"}, 401),
        ("/healthz", {"Onefold-Peer": "a liar's"}, 401),
    ],
)
async def test_a_client_that_asks_too_fast_is_429_and_no_other_is(
    path: str, headers: dict[str, str], status: int
) -> None:
    api = create_api(MemoryNode(TOPOLOGY, [], Settings(rate_limit=5)), routes)

    async def statuses(address: str, count: int) -> list[int]:
        async with client_of(api, address) as http:
            answers = [await http.get(path, headers=headers) for _ in range(count)]
        assert all(int(a.headers["retry-after"]) >= 1 for a in answers if a.status_code == 429)
        return [answer.status_code for answer in answers]

    greedy = await statuses("10.0.0.1", 100)
    assert greedy[:10] == [status] * 10
    assert 429 in greedy[10:]  # not necessarily the last: one passes every 0.2 s
    assert await statuses("10.0.0.2", 10) == [status] * 10


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("2001:db8::1", "2001:db8::ffff:1:2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::1", "::2", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
async def test_a_client_is_one_ipv4_address_or_one_network_of_ipv6(first: str, second: str, together: bool) -> None:
    """A client has a whole /64 to ask from."""
    api = create_api(MemoryNode(TOPOLOGY, [], Settings(rate_limit=1)), routes)
    async with client_of(api, first) as http:
        assert 429 in [(await http.get("/accounts")).status_code for _ in range(20)]
    async with client_of(api, second) as http:
        assert ((await http.get("/accounts")).status_code == 429) is together


async def test_a_probe_is_answered_however_many_requests_come_from_its_address() -> None:
    """Kubernetes ends a worker whose probe is refused; a node's address may also be that of clients."""
    async with client_of(create_api(MemoryNode(TOPOLOGY, [], Settings(rate_limit=1)), routes)) as http:
        assert 429 in [(await http.get("/readyz?key=ann")).status_code for _ in range(20)]
        for path in PROBES:
            assert {(await http.get(path)).status_code for _ in range(20)} == {200}


async def test_a_token_that_asks_too_fast_from_everywhere_is_429_and_no_other_is(tmp_path: Path) -> None:
    settings = issuer_settings(tmp_path, "accounts").model_copy(update={"rate_limit": 1})
    api = create_api(MemoryNode(TOPOLOGY, [], settings), routes)

    async def status(subject: str, address: str) -> int:
        token = DevIssuer(tmp_path).token("accounts", ["accounts:read"], subject)
        async with client_of(api, address) as http:
            answer = await http.get(f"/accounts/{subject}", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code != 429 or int(answer.headers["retry-after"]) >= 1
        return answer.status_code

    greedy = [await status("ann", f"10.0.0.{number}") for number in range(30)]
    assert greedy[:2] == [404] * 2
    assert 429 in greedy
    assert await status("bob", "10.0.0.1") == 404


def test_a_bucket_fills_with_time_and_never_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    buckets = Buckets(rate=10)
    assert sum(buckets.take("a") == 0 for _ in range(50)) == 20
    assert buckets.take("a") == pytest.approx(0.1)
    now += 0.55
    assert sum(buckets.take("a") == 0 for _ in range(50)) == 5
    now += 3600
    assert sum(buckets.take("a") == 0 for _ in range(50)) == 20


def test_the_number_of_remembered_clients_is_bounded_and_a_greedy_one_stays() -> None:
    buckets = Buckets(rate=1, clients=100)
    for number in range(10_000):
        buckets.take("greedy")
        buckets.take(f"client {number}")
    assert len(buckets._left) == 100
    assert buckets.take("greedy") > 0


def test_a_debt_is_not_forgotten_for_other_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    buckets = Buckets(rate=1, clients=100)
    assert buckets.take("batch") == 0
    assert buckets.owe("batch", 100) == 0
    for number in range(1_000):
        buckets.take(f"client {number}")
    assert len(buckets._left) == 100
    assert buckets.take("batch") == pytest.approx(100)
    now += 100
    assert buckets.take("batch") == 0
    for number in range(200):
        buckets.owe(f"client {number}", 100)  # all of them owe, and no more are remembered for that
    assert len(buckets._left) == 100


def test_without_a_limit_no_client_is_remembered() -> None:
    buckets = Buckets(rate=0)
    assert buckets.take("a") == 0
    assert not buckets._left


async def test_an_answer_that_does_not_begin_in_time_is_503() -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(10)

    status, body = await raw(TimeLimit(slow, max_s=0.05))
    assert (status, body["code"]) == (503, "not_ready")


async def test_a_body_that_arrives_too_slowly_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_WITHIN_S", 0.05)

    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        pytest.fail("the application was asked")

    status, body = await raw(BodyLimit(never, HeldBytes()), headers=[(b"content-length", b"5")])
    assert (status, body["code"]) == (408, "request.too_slow")


@pytest.mark.parametrize("path", ["/readyz?key=ann", "/readyz?partition=1"])
async def test_a_body_that_readiness_does_not_need_is_not_read_where_another_worker_answers(path: str) -> None:
    """Whoever has no token may ask, and could fill the memory."""

    read = list[bytes]()

    async def body() -> AsyncIterator[bytes]:
        read.append(b"{}")
        yield read[-1]

    owned_elsewhere = MemoryNode(TOPOLOGY, [])
    owned_elsewhere.refuses = set(range(TOPOLOGY.partitions))
    async with client_of(create_api(owned_elsewhere, routes)) as http:
        answer = await http.request("GET", path, content=body())
    assert (answer.status_code, answer.json()["code"], answer.headers["connection"]) == (503, "not_ready", "close")
    assert not read


@pytest.mark.parametrize("service", SERVICES)
def test_every_route_documents_who_may_call_it(service: str) -> None:
    for path, methods in api_of(service).openapi()["paths"].items():
        for method, operation in methods.items():
            closed = path not in ("/healthz", "/readyz")
            assert ("security" in operation) is closed, (method, path)
            assert ({"401", "403", "429"} <= operation["responses"].keys()) is closed, (method, path)


async def raw(app: ASGIApp, headers: list[tuple[bytes, bytes]] | None = None) -> tuple[int, dict[str, object]]:
    """Status and body of an answer to a request whose body never comes."""
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.sleep(10)
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": headers or [],
    }
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])
