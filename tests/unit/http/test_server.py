"""The HTTP server by real sockets: what it can't bind, and how long it waits for a request."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from select import select
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from shared.dev.worker import free_port
from shared.http import limits
from shared.http import server as server_module
from shared.http.api import create_api
from shared.http.health import PROBES
from shared.http.server import HttpServer
from shared.runtime.checkout import CHECKOUT
from shared.runtime.settings import Settings, SettingsError
from shared.testing.node import MemoryNode
from tests.accounts.api import routes
from tests.accounts.topology import TOPOLOGY
from tests.unit.http.services import issuer_settings
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def server_at(host: str, port: int) -> HttpServer:
    return HttpServer(create_api(MemoryNode(TOPOLOGY, []), routes), host, port)


def behind(proxies: str, port: int) -> HttpServer:
    """Answers one request a second and address."""
    return HttpServer(create_api(MemoryNode(TOPOLOGY, [], Settings(rate_limit=1)), routes), "127.0.0.1", port, proxies)


def crowded(port: int, most: int, proxies: str = "") -> HttpServer:
    """Has room for `most` connections."""
    api = create_api(MemoryNode(TOPOLOGY, []), routes)
    return HttpServer(api, "127.0.0.1", port, proxies, max_connections=most)


async def refused(host: str, port: int) -> str:
    server = server_at(host, port)
    with pytest.raises(SettingsError) as found:
        await server.on_start()
    await server.on_stop()
    return str(found.value)


async def test_a_port_that_is_taken_is_named() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        said = await refused("127.0.0.1", port)
    assert said.startswith(f"HTTP can't listen at ONEFOLD_HTTP_HOST=127.0.0.1, ONEFOLD_HTTP_PORT={port}: ")
    assert "address already in use; fix: " in said


async def test_a_host_that_is_not_this_machine_is_named() -> None:
    assert "ONEFOLD_HTTP_HOST=nowhere.invalid, " in await refused("nowhere.invalid", free_port())


@asynccontextmanager
async def serving(server: HttpServer) -> AsyncIterator[None]:
    await server.on_start()
    try:
        yield
    finally:
        await server.on_stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
async def test_a_container_asks_its_worker_whatever_it_binds(host: str) -> None:
    if host == "::" and not has_ipv6():
        pytest.skip("no IPv6 here")
    port = free_port()
    command = [sys.executable, "-IS", str(CHECKOUT / "deploy" / "ready")]
    async with serving(server_at(host, port)):
        environment = {"ONEFOLD_HTTP_HOST": host, "ONEFOLD_HTTP_PORT": str(port)}
        asked = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
    assert (asked.returncode, asked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("requests", "sent"), [(0, b""), (0, b"GET /heal"), (0, b"GET /healthz HTTP/1.1\r\nHost: a\r\n"), (1, b"G")]
)
async def test_a_connection_that_sends_no_whole_request_is_closed(
    requests: int, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEAD_S", 2.0)
    port = free_port()
    async with serving(server_at("127.0.0.1", port)):
        idle, stuck = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for connection in (idle, *[stuck] * requests):
            await answered(*connection)
        stuck[1].write(sent)
        await asyncio.wait_for(stuck[0].read(), 30)  # to its end
        await answered(*idle)  # one that only waits is kept
        for _, writer in (idle, stuck):
            writer.close()
            await writer.wait_closed()


OTHERS = "127.0.0.2", "127.0.0.3"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
async def test_one_address_has_half_of_the_connections_and_on_any_other_only_probes_are_answered() -> None:
    port = free_port()
    async with serving(crowded(port, 4)), dialling(port) as dial:
        for _ in range(2):
            await answered(*await dial())
        assert b"ONEFOLD_MAX_CONNECTIONS" in await refusal(*await dial())
        for path in PROBES:
            assert await status_of(*await dial(), path) == 200
        for _ in range(2):
            _, last = connection = await dial(OTHERS[0])
            assert await status_of(*connection, "/accounts/ann") == 404
        await refusal(*await dial(OTHERS[1]))
        await answered(*await dial(OTHERS[1]))
        last.close()
        await asyncio.to_thread(eventually, lambda: anew(port, OTHERS[1]) == 404)


async def test_a_trusted_proxy_may_have_all_connections() -> None:
    port = free_port()
    async with serving(crowded(port, 4, proxies="10.0.0.1, 127.0.0.0/30")), dialling(port) as dial:
        assert {await status_of(*await dial(), "/accounts/ann") for _ in range(4)} == {404}
        await refusal(*await dial())


async def test_a_client_that_is_gone_before_its_connection_is_taken_up_is_no_error() -> None:
    """Its address can't be asked for any more; whether it is a proxy's must not matter then."""
    port, errors = free_port(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
    async with serving(crowded(port, 4, proxies="10.0.0.1")), dialling(port) as dial:
        for _ in range(4):
            gone = socket.create_connection(("127.0.0.1", port))  # the loop takes up nothing meanwhile
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no end
            gone.close()
        await answered(*await dial())
    assert errors == []


async def test_an_upgrade_is_no_way_out_of_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn hands the connection over to what is installed for WebSockets, and forgets it; none is needed here."""
    monkeypatch.setattr("uvicorn.protocols.websockets.auto.AutoWebSocketsProtocol", TakesOver)
    port = free_port()
    async with serving(server_at("127.0.0.1", port)), dialling(port) as dial:
        reader, writer = await dial()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 200 ")


class TakesOver(asyncio.Protocol):
    """In place of a library for WebSockets: closes what is handed over to it."""

    def __init__(self, **_: object) -> None:
        pass

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()

    def data_received(self, data: bytes) -> None:
        pass


async def test_those_that_wait_on_connections_too_many_make_room_for_the_next_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "CROWD", 3)
    port = free_port()
    async with serving(crowded(port, 2)), dialling(port) as dial:
        none_too_many, oldest, *_ = [await dial() for _ in range(6)]
        await answered(*await dial())
        assert await asyncio.wait_for(oldest[0].read(), 30) == b""
        await answered(*none_too_many)


FRAMINGS = [
    ("Content-Length: %d\r\nTransfer-Encoding: chunked", "Transfer-Encoding can't be present with Content-Length"),
    ("Transfer-Encoding: chunked\r\nContent-Length: %d", "Content-Length can't be present with Transfer-Encoding"),
    ("Content-Length: %d\r\nTransfer-Encoding: identity", "Transfer-Encoding can't be present with Content-Length"),
    ("Content-Length: 0\r\nContent-Length: %d", "Duplicate Content-Length"),
    ("Host: b\r\nContent-Length: %d", "a request has one Host"),
]


@pytest.mark.parametrize(("framing", "reason"), FRAMINGS)
async def test_a_request_that_can_be_read_in_two_ways_is_refused_with_all_that_follows(
    framing: str, reason: str
) -> None:
    """To a proxy that goes by Content-Length, the second request would be the body of the first."""
    second = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    head = f"POST /accounts/ann HTTP/1.1\r\nHost: a\r\n{framing % (5 + len(second))}\r\n\r\n"
    status, rest = await last_answer(head.encode() + b"0\r\n\r\n" + second)
    assert status.startswith(b"HTTP/1.1 400 ")
    assert b"HTTP/1.1" not in rest
    problem = json.loads(rest.partition(b"\r\n\r\n")[2])
    assert problem["code"] == "request.malformed"
    assert problem["detail"].startswith(reason)


@pytest.mark.parametrize(("version", "status"), [(b"1.1", b"400"), (b"1.0", b"200")])
async def test_a_request_names_its_host_unless_it_is_older_than_that(version: bytes, status: bytes) -> None:
    line, _ = await last_answer(b"GET /healthz HTTP/%b\r\n\r\n" % version)
    assert line.split()[1] == status


CHUNKED = b"POST /accounts/ann/charges HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("target", [b"http://a", b"http://a?b=c"])
async def test_a_target_without_a_path_is_told_so(target: bytes) -> None:
    line, rest = await last_answer(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target)
    assert line.startswith(b"HTTP/1.1 400 ")
    assert b"fix: put / behind the host" in rest


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("malformed", [b"GET / HTTP/1.1\r\n\r\n", b"\x00", CHUNKED + b"x"])
async def test_a_refusal_does_not_overtake_the_answers_to_what_came_before(
    before: int, malformed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client would take it for one of them."""
    monkeypatch.setattr(limits, "BODY_WITHIN_S", 0.0)
    line, rest = await last_answer(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * before + malformed)
    statuses = re.findall(rb"HTTP/1\.1 ([0-9]+)", line + rest)
    assert statuses[:before] == [b"200"] * before
    assert statuses[before:] == ([b"408"] if malformed.startswith(CHUNKED) else [])


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /", b"a" * 1000),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nA: ", b"a" * 1000),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\n", b"A: b\r\n" * 100),
        (b"", b"\r\n" * 500),
        (CHUNKED + b"1;a=", b"a" * 1000),
        (CHUNKED + b"0\r\nA: ", b"a" * 1000),
        (CHUNKED + b"0\r\n", b"A: b\r\n" * 100),
    ],
)
async def test_what_is_no_body_is_read_up_to_a_limit(begin: bytes, more: bytes) -> None:
    port = free_port()
    async with serving(server_at("127.0.0.1", port)):
        answer = await asyncio.to_thread(interrupted, port, begin, more)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b" more than 16384 bytes" in answer


async def test_a_head_that_is_too_large_is_told_so_however_much_of_it_was_on_its_way() -> None:
    line, rest = await last_answer(b"GET /healthz HTTP/1.1\r\nHost: a\r\nA: " + b"a" * 2**20)
    assert line.startswith(b"HTTP/1.1 400 ")
    assert b" more than 16384 bytes" in rest


def interrupted(port: int, begin: bytes, more: bytes) -> bytes:
    """The answer to somebody who sends ever more until there is one."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(begin)
        for _ in range(100):
            client.sendall(more)
            if select([client], [], [], 0.01)[0]:
                return client.recv(1000)
    return b""


async def test_what_follows_a_body_is_no_header_of_the_request() -> None:
    """A proxy checks what comes before the body: who asks, say."""
    api, port = FastAPI(), free_port()
    api.state.closing = asyncio.Event()

    async def names(request: Request) -> JSONResponse:
        await request.body()
        return JSONResponse([name.decode() for name, _ in request.scope["headers"]])

    api.add_route("/names", names, ["POST"])
    async with serving(HttpServer(api, "127.0.0.1", port)), dialling(port) as dial:
        reader, writer = await dial()
        writer.write(b"POST /names HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"1\r\na\r\n0\r\nAuthorization: b\r\n\r\n")
        answer = await asyncio.wait_for(reader.readuntil(b"]"), 30)
    assert answer.endswith(b'["host","transfer-encoding"]')


@pytest.mark.parametrize(
    "request_",
    [b"GET /healthz HTTP/1.1\r\n%b\r\n", b"POST /accounts/ann/charges HTTP/1.1\r\n%bContent-Length: 2\r\n\r\n[]"],
)
async def test_a_client_that_offers_another_protocol_is_answered_in_this_one(request_: bytes) -> None:
    """As `curl --http2` does. What it sends behind it may be of that protocol, so the connection ends."""
    offer = b"Host: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    status, rest = await last_answer(request_ % offer)
    assert status.split()[1] in (b"200", b"422")
    assert b"connection: close\r\n" in rest


async def last_answer(sent: bytes) -> tuple[bytes, bytes]:
    """The line of its status, and all that follows it, up to the end of the connection."""
    port = free_port()
    async with serving(server_at("127.0.0.1", port)), dialling(port) as dial:
        reader, writer = await dial()
        writer.write(sent)
        return await asyncio.wait_for(reader.readline(), 30), await asyncio.wait_for(reader.read(), 30)


async def test_a_client_that_takes_nothing_is_dropped_and_its_place_is_free() -> None:
    """It is sent 1 MB at a time, more than its system takes for it."""
    api, port = FastAPI(), free_port()
    api.state.closing = asyncio.Event()
    ended = asyncio.Event()

    async def endless(request: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield bytes(2**20)
                    await asyncio.sleep(0)
            finally:
                ended.set()

        return StreamingResponse(body())

    api.add_route("/endless", endless)
    async with serving(HttpServer(api, "127.0.0.1", port, stalled_after_s=1.0)):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)  # which stops to read at once
        writer.write(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.wait_for(ended.wait(), 60)
        writer.transport.abort()


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [("/accounts/ann", "", 401), ("/accounts/ann", "rubbish", 401), ("/elsewhere", "", 404)],
)
async def test_whoever_may_not_send_a_body_is_answered_before_it(
    path: str, token: str, status: int, tmp_path: Path
) -> None:
    """And the connection, on which the body would follow, is closed."""
    api, port = create_api(MemoryNode(TOPOLOGY, [], issuer_settings(tmp_path, "accounts")), routes), free_port()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Length: 200000\r\n\r\n"
    async with serving(HttpServer(api, "127.0.0.1", port)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + b"{")
        answer = await asyncio.wait_for(reader.read(), 30)  # to the end of the connection
        writer.close()
        await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
async def test_bodies_that_are_held_have_a_budget_of_which_one_client_has_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or half sent, until the request is answered or its client has hung up."""
    monkeypatch.setattr(limits, "BODY_WITHIN_S", 600.0)  # the half-sent ones stay
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", 40_000)
    port = free_port()

    async def told(status: int, address: str, size: int) -> None:
        await asyncio.to_thread(eventually, lambda: posted(port, address, size) == status)

    async with serving(server_at("127.0.0.1", port)), dialling(port) as dial:
        for _ in range(3):
            await told(422, "127.0.0.1", 15_000)
        _, first = await half_sent(dial)
        await told(503, "127.0.0.1", 6_000)
        await told(422, OTHERS[0], 6_000)
        await half_sent(dial, OTHERS[0])
        await told(503, OTHERS[1], 11_000)
        await told(422, OTHERS[1], 9_000)
        reader, _ = await half_sent(dial, OTHERS[1])
        answer = await asyncio.wait_for(reader.read(), 30)  # to the end of the connection
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in answer
        first.transport.abort()
        await told(422, OTHERS[1], 11_000)


async def test_head_ends_after_the_headers_also_that_of_a_stream() -> None:
    api, port = create_api(MemoryNode(TOPOLOGY, []), routes), free_port()
    async with (
        serving(HttpServer(api, "127.0.0.1", port)),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        for path, content_type in (("/healthz", "application/json"), ("/changes/accounts", "text/event-stream")):
            answer = await http.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-type"].startswith(content_type)
        await asyncio.to_thread(eventually, lambda: api.state.streams.open == 0)


@pytest.mark.parametrize(
    ("proxies", "believed"), [("", False), ("10.0.0.0/8", False), ("127.0.0.1", True), ("10.0.0.1, 127.0.0.0/8", True)]
)
async def test_only_a_trusted_proxy_tells_who_asks(
    proxies: str, believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: 0.0))  # no bucket fills up meanwhile
    port = free_port()
    async with serving(behind(proxies, port)), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:

        async def status(address: str) -> int:
            return (await http.get("/accounts", headers={"X-Forwarded-For": address})).status_code

        assert 429 in [await status("192.0.2.1") for _ in range(20)]
        assert (await status("192.0.2.2") == 200) is believed


async def test_a_client_cannot_choose_its_address_by_what_a_trusted_proxy_passes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy appends the address it saw to what the client sent."""
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: 0.0))
    port = free_port()
    async with serving(behind("127.0.0.1", port)), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        sent = [{"X-Forwarded-For": f"198.51.100.{number}, 192.0.2.1"} for number in range(20)]
        assert 429 in [(await http.get("/accounts", headers=each)).status_code for each in sent]


@asynccontextmanager
async def dialling(port: int) -> AsyncIterator[Callable[..., Awaitable[Connection]]]:
    """Opens connections from a given address, which are closed in the end."""
    opened: list[Connection] = []

    async def dial(address: str = "127.0.0.1") -> Connection:
        opened.append(await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))
        return opened[-1]

    try:
        yield dial
    finally:
        for _, writer in opened:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


async def refusal(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """What a connection is told, which is closed then."""
    writer.write(b"GET /accounts/ann HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 30)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in answer
    return answer


async def status_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> int:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    return int((await asyncio.wait_for(reader.readuntil(b"}"), 30)).split()[1])


async def half_sent(dial: Callable[..., Awaitable[Connection]], address: str = "127.0.0.1") -> Connection:
    """A connection on which 15,000 bytes of a longer body have been sent."""
    reader, writer = await dial(address)
    writer.write(b"POST /accounts/ann/charges HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n" + bytes(15_000))
    return reader, writer


def posted(port: int, address: str, size: int) -> int:
    """The status for a command that is no JSON, from this address."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address)) as http:
        return http.post(f"http://127.0.0.1:{port}/accounts/ann/charges", content=bytes(size)).status_code


def anew(port: int, address: str) -> int:
    """The status for a new connection from this address."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address)) as http:
        return http.get(f"http://127.0.0.1:{port}/accounts/ann").status_code


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await asyncio.wait_for(reader.readuntil(b"}"), 30)).startswith(b"HTTP/1.1 200 ")


def has_ipv6() -> bool:
    with suppress(OSError), closing(socket.create_server(("::1", 0), family=socket.AF_INET6)):
        return True
    return False
