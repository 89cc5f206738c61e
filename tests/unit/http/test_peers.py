"""What a worker forwards to its peers, to which of them, and which forwarded requests it accepts."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import jwt
import pytest
from starlette.types import Receive, Scope, Send
from yarl import URL

from shared.dev.issuer import DevIssuer
from shared.engine.processors import AggregateProcessor
from shared.http.api import create_api
from shared.http.auth import Authority
from shared.http.peers import TOKEN_S, AllowedPeers, PeerTokens, peer_tokens
from shared.runtime.settings import Settings
from shared.testing.node import MemoryNode
from shared.topology.topics import Table
from tests.accounts.api import routes
from tests.accounts.domain.decide import DECIDER
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from tests.unit.http.services import PEER_SECRET, client_of, issuer_settings

pytestmark = pytest.mark.anyio

AUTHORITY = Authority(subject="ann", scopes=frozenset({"accounts:read"}), owner="ann", expires_at=2e9)


@dataclass
class Recorder:
    """A server that records each request's head and always answers the same: a worker's JSON, unless told otherwise."""

    status: str = "200 OK"
    content_type: str = ""
    body: bytes = b'{"parts": []}'
    url: str = ""
    heads: list[list[str]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head.decode().split("\r\n")[:-2])
        body = b"" if self.status.startswith(("204", "304")) else self.body
        media = self.content_type or ("application/json" if self.status < "4" else "application/problem+json")
        writer.write(
            b"HTTP/1.1 %s\r\nContent-Type: %s\r\nSet-Cookie: a=b\r\nConnection: close\r\n"
            b"Location: http://elsewhere/\r\nOnefold-Lag: 0\r\nContent-Length: %d\r\n\r\n%s"
            % (self.status.encode(), media.encode(), len(body), body)
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    def headers(self) -> dict[str, str]:
        """The headers of the only request."""
        (head,) = self.heads
        return {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:])}


@asynccontextmanager
async def recording(status: str = "200 OK", content_type: str = "") -> AsyncIterator[Recorder]:
    recorder = Recorder(status, content_type)
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
    recorder.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield recorder
    server.close()
    await server.wait_closed()


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owner and caller share a loop on a busy machine: nobody may be given up for being slow to accept."""
    monkeypatch.setattr("shared.http.peers.CONNECT_S", 30.0)


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    async with recording() as recorder:
        yield recorder


class Elsewhere(MemoryNode):
    """A worker that owns nothing; its group says that another worker does."""

    def __init__(self, owner: str, settings: Settings | None = None, *others: str) -> None:
        super().__init__(TOPOLOGY, [], settings)
        self.refuses = set(range(TOPOLOGY.partitions))
        self._owner = owner
        self._others = others

    def owner(self, table: Table, partition: int) -> str | None:
        return self._owner

    def members(self) -> frozenset[str]:
        return frozenset({self._owner, self.settings.url, *self._others})


async def ask(node: MemoryNode, method: str, path: str, **headers: str) -> httpx.Response:
    api = create_api(node, routes)
    async with client_of(api) as http, api.router.lifespan_context(api):
        return await http.request(
            method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )


async def test_a_peer_gets_the_trace_and_the_conditions_and_nothing_else(recorder: Recorder) -> None:
    answer = await ask(
        Elsewhere(recorder.url),
        "GET",
        "/accounts/a%2Fb%3F%25?wait=1&min_position=accounts.commands.v1/0@1",
        authorization="Bearer secret",
        cookie="session=secret",
        x_forwarded_for="10.0.0.1",
        x_custom="secret",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        if_none_match='"3"',
    )
    assert answer.status_code == 200
    assert recorder.heads[0][0] == "GET /accounts/a%2Fb%3F%25?wait=1&min_position=accounts.commands.v1/0@1 HTTP/1.1"
    assert "secret" not in "\n".join(recorder.heads[0])
    assert "10.0.0.1" not in "\n".join(recorder.heads[0])
    assert recorder.headers()["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c")
    assert recorder.headers()["if-none-match"] == '"3"'
    assert (answer.headers["onefold-lag"], "set-cookie" in answer.headers) == ("0", False)


async def test_a_peer_gets_what_a_command_asks_for(recorder: Recorder) -> None:
    wished = {"idempotency-key": "one", "if-match": '"3"', "occurred-at": "2026-11-20T10:00:00Z", "prefer": "wait=1"}
    api = create_api(Elsewhere(recorder.url), routes)
    async with client_of(api) as http, api.router.lifespan_context(api):
        assert (await http.post("/accounts/ann", headers=wished)).status_code == 200
    assert recorder.headers().items() >= wished.items()


async def test_a_peer_is_asked_for_the_whole_answer_to_a_head(recorder: Recorder) -> None:
    """Which says how long it is."""
    answer = await ask(Elsewhere(recorder.url), "HEAD", "/accounts/ann")
    assert recorder.heads[0][0] == "GET /accounts/ann HTTP/1.1"
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "13", b"")


async def test_every_line_of_a_header_is_forwarded(recorder: Recorder) -> None:
    api = create_api(Elsewhere(recorder.url), routes)
    async with client_of(api) as http, api.router.lifespan_context(api):
        await http.get("/accounts/ann", headers=[("If-None-Match", '"1"'), ("If-None-Match", '"2"')])
    assert [line for line in recorder.heads[0] if line.lower().startswith("if-none-match")] == [
        'if-none-match: "1"',
        'if-none-match: "2"',
    ]


async def test_control_characters_in_a_header_do_not_keep_a_request_from_a_peer(recorder: Recorder) -> None:
    """Servers let them in, and aiohttp sends none."""
    answer = await ask(Elsewhere(recorder.url), "GET", "/accounts/ann", accept="a\x01b", if_none_match='"\x7f"')
    assert answer.status_code == 200
    assert (recorder.headers()["accept"], recorder.headers()["if-none-match"]) == ("a b", '" "')


async def test_a_request_reaches_a_peer_at_which_100_others_wait() -> None:
    """100 connections, to all peers together, are aiohttp's own limit."""
    all_there = asyncio.Barrier(101)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await all_there.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    api = create_api(Elsewhere(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), routes)
    async with (
        server,
        api.router.lifespan_context(api),
        client_of(api) as http,
    ):
        waiting = [asyncio.ensure_future(http.get("/accounts/ann?until=phase:open&wait=30")) for _ in range(101)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert next(task.result().status_code for task in waiting if task.done()) == 200
        for task in waiting:
            task.cancel()


@pytest.mark.parametrize("character", ["#", '"', "<", "\\", "|"])
async def test_an_unescaped_character_of_an_id_reaches_the_peer(recorder: Recorder, character: str) -> None:
    api = create_api(Elsewhere(recorder.url), routes)

    async def unescaped(scope: Scope, receive: Receive, send: Send) -> None:
        await api({**scope, "raw_path": f"/accounts/a{character}b/charges".encode()}, receive, send)

    async with client_of(unescaped) as http, api.router.lifespan_context(api):
        await http.post("/", json={"amount_cents": 1})
    _, target, _ = recorder.heads[0][0].split(" ")
    assert unquote(urlsplit(target).path) == f"/accounts/a{character}b/charges"
    peer_tokens("accounts", Settings(advertised_url=recorder.url)).verify(
        recorder.headers()["onefold-peer"], "POST", target
    )


async def test_a_peer_learns_who_the_caller_is_but_does_not_get_the_token(recorder: Recorder, tmp_path: Path) -> None:
    issuer = DevIssuer(tmp_path)
    settings = issuer_settings(tmp_path, "accounts")
    token = issuer.token("accounts", ["accounts:read"], "ann")
    await ask(Elsewhere(recorder.url, settings), "GET", "/accounts/ann", authorization=f"Bearer {token}")
    assert token not in "\n".join(recorder.heads[0])
    at_peer = peer_tokens("accounts", settings.model_copy(update={"advertised_url": recorder.url}))
    told = at_peer.verify(recorder.headers()["onefold-peer"], "GET", "/accounts/ann")
    assert told.authority is not None
    assert (told.authority.subject, told.authority.owner, told.authority.scopes) == (
        "ann",
        "ann",
        frozenset({"accounts:read"}),
    )


@pytest.mark.parametrize("owner", ["http://169.254.169.254", "http://127.0.0.1:1@169.254.169.254", "http://metadata"])
@pytest.mark.parametrize("path", ["/accounts/ann", "/accounts", "/cluster", "/readyz?partition=1"])
async def test_an_address_outside_the_allowed_peers_is_never_called(
    owner: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever address a member of the group gives."""

    def dialled(*_: object, **__: object) -> None:
        pytest.fail("it was called")

    monkeypatch.setattr("aiohttp.ClientSession._request", dialled)
    answer = await ask(Elsewhere(owner, Settings(peers="127.0.0.0/8")), "GET", path)
    assert answer.status_code == (503 if path.startswith(("/accounts/", "/readyz")) else 200)


@pytest.mark.parametrize(
    ("patterns", "url", "allowed"),
    [
        ("*", "http://anything:8000", True),
        ("127.0.0.0/8", "http://127.0.0.1:8000", True),
        ("127.0.0.0/8", "http://128.0.0.1:8000", False),
        ("127.0.0.0/8", "http://localhost:8000", False),
        ("10.1.2.3", "http://10.1.2.3", True),
        ("10.1.2.3", "http://10.1.2.4", False),
        ("::1/128", "http://[::1]:80", True),
        ("10.0.0.0/8,::1", "http://[::1]:80", True),
        ("accounts-*.accounts", "http://accounts-0.accounts:8000", True),
        ("accounts-*.accounts", "http://accounts-0.accounts.evil:8000", False),
        ("127.0.0.0/8:8000", "http://127.0.0.1:8000", True),
        ("127.0.0.0/8:8000", "http://127.0.0.1:9000", False),
        ("127.0.0.0/8:80,127.0.0.0/8:443", "http://127.0.0.1", True),
        ("127.0.0.0/8:80", "https://127.0.0.1", False),
        ("[::1]:8000", "http://[::1]:8000", True),
        ("[::1]:8000", "http://[::1]:8001", False),
        ("[::/0]", "http://[::1]:8001", True),
        ("accounts-*:8000", "http://accounts-0:8000", True),
        ("accounts-*:8000", "http://accounts-0:8001", False),
        ("*", "file:///etc/passwd", False),
        ("*", "http://a:80/path", False),
        ("*", "http://user@a:80", False),
        ("*", "http://@a:80", False),
        ("*", "http://a:80#b", False),
        ("*", "http://a:80#", False),
        ("*", "http://a:80?", False),
        ("*", "http://a:99999", False),
        ("*", "http://a:b", False),
        ("*", "http://a\t:80", False),
        ("10.0.0.0/8", "http://[::ffff:10.0.0.1]", False),
    ],
)
def test_peers_are_networks_or_names(patterns: str, url: str, allowed: bool) -> None:
    assert AllowedPeers(patterns).allow(url) is allowed


HERE = Settings().url


def good(method: str = "GET", target: str = "/accounts/ann", at: str = HERE, body: bytes = b"") -> str:
    return PeerTokens("accounts", PEER_SECRET, "").sign(AUTHORITY, method, URL(at + target, encoded=True), body)


def forged(secret: str = PEER_SECRET, **claims: object) -> str:
    body = jwt.decode(good(), options={"verify_signature": False})
    return jwt.encode(body | claims, secret, "HS256")


@pytest.mark.parametrize(
    "token",  # made in the test, which may run after tokens of now have expired
    [
        lambda: "",
        lambda: "1",
        lambda: good(target="/accounts/bob"),
        lambda: good(target="/accounts/ann?wait=1"),
        lambda: good("POST"),
        lambda: forged("a secret that other workers alone know"),
        lambda: good(at="http://127.0.0.1:8001"),
        lambda: good(body=b"{}"),
        lambda: forged(aud="accounts"),
        lambda: forged(iss="onefold-peer/orders"),
        lambda: forged(exp="soon"),
        lambda: forged(exp=float("inf")),
        lambda: good().rsplit(".", 1)[0] + ".",
    ],
)
async def test_a_request_with_a_forged_peer_token_is_401(token: Callable[[], str]) -> None:
    settings = Settings.model_validate({"peer_secret": PEER_SECRET})
    answer = await ask(Elsewhere("http://127.0.0.1:1", settings), "GET", "/accounts/ann", onefold_peer=token())
    assert (answer.status_code, answer.json()["code"]) == (401, "peer.unknown")


@pytest.mark.parametrize("ahead_s", [-40, 40, 365 * 24 * 3600])
async def test_a_peer_whose_clock_is_off_is_told_so_with_both_times(ahead_s: float) -> None:
    settings = Settings.model_validate({"peer_secret": PEER_SECRET})
    token = forged(exp=time.time() + TOKEN_S + ahead_s)
    answer = await ask(Elsewhere("http://127.0.0.1:1", settings), "GET", "/accounts/ann", onefold_peer=token)
    assert (answer.status_code, answer.json()["code"]) == (401, "peer.clock")
    assert re.search(r"signed at \d{4}-\S+Z, and here it is \d{4}-\S+Z; fix: sync", answer.json()["detail"])


async def test_a_forwarded_command_is_taken_with_the_body_that_was_signed_and_no_other() -> None:
    settings = Settings.model_validate({"peer_secret": PEER_SECRET})
    node = MemoryNode(TOPOLOGY, [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)], settings)
    api, path, body = create_api(node, routes), "/accounts/ann/charges", b'{"amount_cents": 1}'
    headers = {"Content-Type": "application/json", "Onefold-Peer": good("POST", path, body=body)}
    async with client_of(api) as http:
        await http.post("/accounts/ann")
        for other in (b'{"amount_cents": 9}', b"", body + b" "):
            refused = await http.post(path, content=other, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (401, "peer.unknown")
        assert (await http.post(path, content=body, headers=headers)).status_code == 201
        assert (await http.get("/accounts/ann")).json()["balance_cents"] == 1


@pytest.mark.parametrize("url", ["http://Orders-0.orders:80", "https://h:443", "http://[::1]:8001", "http://a:1"])
def test_a_token_is_for_the_peer_as_its_settings_name_it(url: str) -> None:
    settings = Settings(advertised_url=url)
    tokens = peer_tokens("orders", settings)
    token = tokens.sign(None, "GET", URL(f"{settings.url}/orders/a%2Fb?wait=1", encoded=True))
    assert tokens.verify(token, "GET", "/orders/a%2Fb?wait=1").authority is None


async def test_a_forwarded_request_is_not_forwarded_again(recorder: Recorder) -> None:
    settings = Settings.model_validate({"peer_secret": PEER_SECRET})
    answer = await ask(Elsewhere(recorder.url, settings), "GET", "/accounts/ann", onefold_peer=good())
    assert (answer.status_code, recorder.heads) == (503, [])


@pytest.mark.parametrize(
    ("query", "status", "asked"),
    [
        ("?max_lag=5", 200, 1),
        ("", 503, 0),
        ("?max_lag=5&min_position=accounts.commands.v1/0@1", 503, 0),
        ("?max_lag=5&until=phase:open", 503, 0),
    ],
)
async def test_when_the_owner_cannot_answer_standbys_are_asked_if_a_lag_is_allowed(
    recorder: Recorder, query: str, status: int, asked: int
) -> None:
    async with recording("503 Service Unavailable") as owner:
        answer = await ask(Elsewhere(owner.url, None, recorder.url), "GET", f"/accounts/ann{query}")
    assert (answer.status_code, len(owner.heads), len(recorder.heads)) == (status, 1, asked)


@pytest.mark.parametrize("status", ["401 Unauthorized", "429 Too Many Requests"])
async def test_a_refusal_by_a_peer_is_503_for_the_caller(status: str) -> None:
    """The peer has another secret or a wrong clock, or already requires tokens, which this worker does not yet."""
    async with recording(status) as owner:
        answer = await ask(Elsewhere(owner.url), "GET", "/accounts/ann")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"null",
        b"[]",
        b"{}",
        b"[" * 10_000,
        b'{"parts": null}',
        b'{"parts": [1]}',
        b'{"parts": [{"covered": {"partition": "first"}, "found": [], "frontier": null}]}',
        b'{"parts": [{"covered": {"partition": 0, "status": "fresh"}, "found": [[["?", ""], {}]], "frontier": null}]}',
    ],
)
async def test_a_peer_whose_part_cannot_be_read_has_none(recorder: Recorder, body: bytes) -> None:
    recorder.body = body
    node = Elsewhere(recorder.url)
    for path in ("/accounts", "/dead-letters"):
        answer = await ask(node, "GET", path)
        assert answer.status_code == 200, path
        assert {part["status"] for part in answer.json()["partitions"]} == {"missing"}, path
    cluster = (await ask(node, "GET", "/cluster")).json()
    assert {member["url"]: member["reachable"] for member in cluster["members"]} == {
        node.settings.url: True,
        recorder.url: False,
    }


NO_WORKERS = [
    ("404 Not Found", "text/plain"),
    ("404 Not Found", "application/json"),
    ("500 Internal Server Error", "text/plain"),
    ("502 Bad Gateway", "text/html"),
    ("502 Bad Gateway", "application/problem+json"),
    ("503 Service Unavailable", "text/plain"),
    ("504 Gateway Timeout", "application/problem+json"),
    ("302 Found", "text/html"),
    ("302 Found", "application/json"),
    ("200 OK", "text/html"),
    ("200 OK", "application/problem+json"),
    ("204 No Content", "text/plain"),
]
"""What a sidecar, an ingress or another program answers at a worker's address."""


@pytest.mark.parametrize(("status", "content_type"), NO_WORKERS)
async def test_an_answer_that_no_worker_gives_is_503_unless_a_standby_answers(
    recorder: Recorder, status: str, content_type: str
) -> None:
    async with recording(status, content_type) as owner:
        refused = await ask(Elsewhere(owner.url), "GET", "/accounts/ann")
        answered = await ask(Elsewhere(owner.url, None, recorder.url), "GET", "/accounts/ann?max_lag=5")
    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "not_ready", "1")
    assert (answered.status_code, answered.json()) == (200, {"parts": []})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/accounts/ann/closure"),
        ("GET", "/accounts/ann/commands/1"),
        ("GET", "/accounts/ann/events"),
        ("GET", "/readyz?partition=1"),
    ],
)
async def test_no_route_takes_a_page_or_a_redirect_for_the_owners_answer(method: str, path: str) -> None:
    async with recording("200 OK", "text/html") as page, recording("302 Found") as redirect:
        for owner in (page, redirect):
            answer = await ask(Elsewhere(owner.url), method, path)
            assert (answer.status_code, "location" in answer.headers, len(owner.heads)) == (503, False, 1)


@pytest.mark.parametrize(
    ("status", "content_type"),
    [
        ("200 OK", "application/json"),
        ("201 Created", "application/json; charset=utf-8"),
        ("202 Accepted", "application/json"),
        ("304 Not Modified", "text/plain"),
        ("404 Not Found", "application/problem+json"),
        ("409 Conflict", "application/problem+json; charset=utf-8"),
        ("422 Unprocessable Content", "application/problem+json"),
        ("500 Internal Server Error", "application/problem+json"),
        ("503 Service Unavailable", "application/problem+json"),
    ],
)
async def test_every_answer_that_a_worker_gives_is_passed_on(status: str, content_type: str) -> None:
    async with recording(status, content_type) as owner:
        answer = await ask(Elsewhere(owner.url), "GET", "/accounts/ann")
    assert (answer.status_code, answer.headers["onefold-lag"]) == (int(status[:3]), "0")


async def test_a_forwarded_request_has_no_more_rights_than_its_caller(tmp_path: Path) -> None:
    DevIssuer(tmp_path).key()
    node = MemoryNode(TOPOLOGY, [], issuer_settings(tmp_path, "accounts"))
    assert (await ask(node, "GET", "/accounts/ann", onefold_peer=good())).status_code == 404
    assert (await ask(node, "GET", "/accounts/bob", onefold_peer=good(target="/accounts/bob"))).status_code == 403
    assert (await ask(node, "POST", "/accounts/ann", onefold_peer=good("POST"))).status_code == 403
    anonymous = PeerTokens("accounts", PEER_SECRET, "").sign(None, "GET", URL(f"{HERE}/accounts/ann"))
    assert (await ask(node, "GET", "/accounts/ann", onefold_peer=anonymous)).status_code == 401
