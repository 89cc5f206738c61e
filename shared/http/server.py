"""uvicorn on the worker's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

import uvicorn
from fastapi import FastAPI
from httptools import parse_url
from mode import Service
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shared.http.limits import CROWDED, closing, counted
from shared.http.problems import problem
from shared.runtime.settings import SettingsError

DRAIN_S = 5
HEAD_BYTES = 16 << 10  # of a request's head, and of what is between the parts of its body
HEAD_S = 10  # for the head of a request, from the first byte or the connection on; bodies have a limit of their own
CROWD = 64  # connections too many, which are kept to see if they are probes
_TOO_LARGE = f"a request's head, or what is between the parts of its body, has more than {HEAD_BYTES} bytes"
_HOST = "a request has one Host, by which a proxy may have gone (RFC 9112, 3.2); fix: send that header once"
_NO_PATH = "the target of a request has a path (RFC 9112, 3.2); fix: put / behind the host"
LINGER_S = 1  # to close before a client has sent all would reset the connection, and the answer might be lost
IDLE_S = 75  # longer than gateways and clients keep a connection: one that closes first loses what they send meanwhile


class HttpServer(Service):
    """Serves `api` from the worker's start to its end; a request that can't be answered yet gets 503."""

    def __init__(
        self,
        api: FastAPI,
        host: str,
        port: int,
        trusted_proxies: str = "",
        stalled_after_s: float = 60.0,
        max_connections: int = 1_000,
        **kwargs: Any,
    ) -> None:
        """trusted_proxies: the only addresses whose X-Forwarded-For is believed, and that may have every connection.

        stalled_after_s: how long a client may take nothing of what waits for it.
        """
        super().__init__(**kwargs)
        config = uvicorn.Config(
            api,
            host=host,
            port=port,
            loop="none",
            http=partial(  # type: ignore[arg-type]
                _Connection, places=_Places(max_connections, trusted_proxies), stalled_after_s=stalled_after_s
            ),
            ws="none",  # a connection that is handed over would keep its place for ever
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(trusted_proxies),
            forwarded_allow_ips=trusted_proxies,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=DRAIN_S,
        )
        self._server = _Server(config)
        self._closing: asyncio.Event = api.state.closing

    async def on_start(self) -> None:
        self._serving = asyncio.ensure_future(self._server.serve())
        while not self._server.started:
            if self._serving.done():
                await self._serving  # raises why
            await asyncio.sleep(0.01)

    async def on_stop(self) -> None:
        self._closing.set()
        self._server.should_exit = True
        await asyncio.wait([self._serving])


class _Places:
    """The connections that a worker may have, of which any one address but a proxy's may have half.

    uvicorn's `limit_concurrency` knows no addresses, and would refuse probes, too.
    """

    def __init__(self, most: int, proxies: str) -> None:
        self._most = most
        self._any_is_proxy = proxies == "*"
        self._proxies = [] if self._any_is_proxy else [ip_network(each.strip()) for each in proxies.split(",") if each]
        self._taken: dict[_Connection, str] = {}
        self._of = Counter[str]()
        self._crowd: dict[_Connection, None] = {}  # the oldest first

    def take(self, connection: _Connection) -> bool:
        """False for one too many. It is kept a while: it may be a probe's, and come from the address of the others."""
        host = connection.client[0] if connection.client else None  # none once the client has gone
        address = counted(host or "unknown")
        share = self._most if self._is_proxy(host) else self._most // 2
        if len(self._taken) < self._most and self._of[address] < share:
            self._taken[connection] = address
            self._of[address] += 1
            return True
        self._crowd[connection] = None
        if len(self._crowd) > CROWD:
            oldest = next(iter(self._crowd))
            del self._crowd[oldest]
            oldest.transport.abort()
        return False

    def leave(self, connection: _Connection) -> None:
        self._crowd.pop(connection, None)
        if address := self._taken.pop(connection, None):
            self._of[address] -= 1
            if not self._of[address]:
                del self._of[address]

    def _is_proxy(self, host: str | None) -> bool:
        return self._any_is_proxy or (host is not None and any(ip_address(host) in each for each in self._proxies))


async def _crowded(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """The app on a connection too many: it refuses all but probes, and the connection ends with the answer."""
    scope[CROWDED] = True
    await app(scope, receive, lambda message: send(closing(message)))


class _Connection(HttpToolsProtocol):
    """Limits the size of a request's head, the time for it, and for a client that takes no answer: uvicorn does not."""

    _head = 0  # bytes of the present request's head, and of its trailers
    _held = 0  # bytes that the parser has taken since it last gave something
    _is_head = True
    _is_refused = False
    _head_due: asyncio.TimerHandle | None = None
    _taken_due: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, places: _Places, stalled_after_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places = places
        self._stalled_after_s = stalled_after_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._places.take(self):
            self.app = partial(_crowded, self.app)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._held += len(data)
        super().data_received(data)
        if self._held > HEAD_BYTES and not self._is_refused:
            self.send_400_response(_TOO_LARGE)
        if self._unanswered is not None:
            self._forget_head()
        elif self._head_due is None:
            self._await_head()

    def on_message_begin(self) -> None:
        self._head, self._held, self._is_head = 0, 0, True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self._is_head:  # uvicorn would let trailers change what the application has been told
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._held, self._is_head = 0, False
        if not self.url.startswith(b"/") and parse_url(self.url).path is None:
            raise ValueError(_NO_PATH)
        hosts = [name for name, _ in self.headers].count(b"host")
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            raise ValueError(_HOST)
        super().on_headers_complete()
        if self.parser.should_upgrade():  # it reads no further
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._held = 0
        super().on_body(body)

    def _count(self, length: int) -> None:
        self._head, self._held = self._head + length, 0
        if self._head > HEAD_BYTES:
            raise ValueError(_TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        """Tells what the parser's error says, of which uvicorn calls this: its own message is the same for all.

        It never comes before or within the answer to an earlier request: then the connection ends after that.
        """
        self._is_refused = True
        last = self._unanswered
        if last is not None and (self.pipeline or last.response_started or not last.more_body):
            last.keep_alive = False
            return
        if error := sys.exception():
            msg = str(error.__context__ or error)  # what was raised above, or what the parser does not take
        answer = problem(400, "request.malformed", msg, headers={"Connection": "close"})
        head = b"".join(b"%b: %b\r\n" % each for each in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n%b\r\n%b" % (head, bytes(answer.body)))
        self.loop.call_later(LINGER_S, self.transport.close)

    @property
    def _unanswered(self) -> RequestResponseCycle | None:
        """The latest request whose head has come, until it is answered in full."""
        last: RequestResponseCycle | None = self.cycle  # uvicorn does not say that there is none at first
        return None if last is None or last.response_complete else last

    def connection_lost(self, exc: Exception | None) -> None:
        self._places.leave(self)
        self._forget_head()
        self._note_taken()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """When 64 KiB wait, beyond what the client's system has taken."""
        super().pause_writing()
        # to close would wait for what it does not take
        self._taken_due = self.loop.call_later(self._stalled_after_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._note_taken()
        super().resume_writing()

    def _note_taken(self) -> None:
        if self._taken_due is not None:
            self._taken_due.cancel()
            self._taken_due = None

    def _await_head(self) -> None:
        self._head_due = self.loop.call_later(HEAD_S, self.timeout_keep_alive_handler)

    def _forget_head(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises SettingsError if it can't listen, where uvicorn ends the process."""
        try:
            await super().startup(sockets)
        except SystemExit as end:
            reason = end.__context__
            if not isinstance(reason, OSError):
                raise RuntimeError("the HTTP side did not start: its reason is in the log") from None
            where = f"ONEFOLD_HTTP_HOST={self.config.host}, ONEFOLD_HTTP_PORT={self.config.port}"
            fix = "name an address of this machine, and a port that is free"
            raise SettingsError(f"HTTP can't listen at {where}: {reason.strerror}; fix: {fix}") from None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the worker."""
        yield
