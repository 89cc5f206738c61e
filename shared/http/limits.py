"""ASGI middleware around the routes: how large, frequent and slow a request may be, and the headers of every answer."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.domain.errors import NotReady
from shared.http.auth import caller_of
from shared.http.problems import not_ready, on_bug, problem, too_many
from shared.http.refusals import TooMany
from shared.http.waiting import MAX_WAIT_S

MAX_BODY_BYTES = 256 * 1024
MAX_HELD_BYTES = 64 * MAX_BODY_BYTES  # of all bodies at once: little of a worker's memory, many thousand usual commands
MAX_TARGET_BYTES = 8 * 1024
BODY_WITHIN_S = 10.0
MAX_ANSWER_S = MAX_WAIT_S + 15.0
CROWDED = "onefold.crowded"  # in the scope of a request that came on a connection too many

HEADERS = {
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}
PAGE_POLICY = b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class BodyLimit:
    """ASGI app around a route: 413 once a body exceeds the limit, whatever Content-Length says; 408 if it is slow.

    The whole body is read before the application sees the request, so that a body it does not need is refused, too.
    Raises NotReady when too many bytes of bodies are held.
    """

    def __init__(self, app: ASGIApp, held: HeldBytes) -> None:
        self.app = app
        self.held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not framings(scope):
            await self.app(scope, receive, send)
            return
        with self.held.counting(scope, receive) as counting:
            await self._limited(scope, counting, send)

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                body = await read_body(receive)
        except TimeoutError:
            detail = f"the body must arrive within {BODY_WITHIN_S:.0f} s"
            await problem(408, "request.too_slow", detail)(scope, receive, send)
            return
        except ConnectionError:
            return
        if len(body) > MAX_BODY_BYTES:
            detail = f"the body may have at most {MAX_BODY_BYTES} bytes"
            await problem(413, "request.too_large", detail)(scope, receive, send)
            return
        await self.app(scope, replayed(body, receive), send)


class UnreadBodies:
    """ASGI middleware: closes the connection after an answer that did not need the rest of the body, such as 401."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not framings(scope):
            await self.app(scope, receive, send)
            return
        unread = True

        async def noted() -> Message:
            nonlocal unread
            message = await receive()
            unread = message.get("more_body", False)
            return message

        async def ended(message: Message) -> None:
            await send(closing(message) if unread else message)

        await self.app(scope, noted, ended)


def closing(message: Message) -> Message:
    """The part of an answer after which the connection closes."""
    if message["type"] != "http.response.start":
        return message
    return {**message, "headers": [*message["headers"], (b"connection", b"close")]}


def framings(scope: Scope) -> set[bytes]:
    return {name for name, _ in scope["headers"] if name in (b"content-length", b"transfer-encoding")}


async def read_body(receive: Receive) -> bytes:
    """The body, or the first part of it that is too large. Raises ConnectionError when the client has hung up."""
    body, more = bytearray(), True
    while more and len(body) <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            raise ConnectionError
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` for a request whose body has been read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


class Buckets:
    """Token buckets by client: `rate` requests a second, and bursts of up to twice as many."""

    def __init__(self, rate: int, clients: int = 10_000) -> None:
        """rate: 0 means no limit. clients: how many are remembered; the one idle for longest is forgotten first.

        One that is in debt stays, unless many are.
        """
        self.rate = rate
        self._full = 2.0 * rate
        self._clients = clients
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted

    def take(self, client: str) -> float:
        """0 when the request may pass, else the seconds until one may."""
        if self.rate == 0:
            return 0.0
        left, now = self._left_to(client)
        self._count(client, left - 1 if left >= 1 else left, now)
        return self._wait_s(left)

    def owe(self, client: str, more: int) -> float:
        """For one that has passed and is worth more than one: those after it wait until that is paid off.

        The seconds until it may pass, if it came beside one that has run up a debt; it is not counted then.
        """
        if self.rate == 0 or more == 0:
            return 0.0
        left, now = self._left_to(client)
        self._count(client, left if left < 0 else left - more, now)
        return self._wait_s(left) if left < 0 else 0.0

    def _left_to(self, client: str) -> tuple[float, float]:
        """Its tokens, and now. The client counts as the one that came last."""
        now = time.monotonic()
        left, counted = self._left.pop(client, (self._full, now))
        return min(self._full, left + (now - counted) * self.rate), now

    def _count(self, client: str, left: float, now: float) -> None:
        self._left[client] = (left, now)
        for _ in range(10):
            if len(self._left) <= self._clients:
                return
            idle, (left, counted) = self._left.popitem(last=False)
            if left + (now - counted) * self.rate < 0:
                self._left[idle] = (left, counted)
        if len(self._left) > self._clients:
            self._left.popitem(last=False)

    def _wait_s(self, left: float) -> float:
        return 0.0 if left >= 1 else (1 - left) / self.rate


def owe(request: Request, more: int) -> None:
    """Counts a request as so many more by its client, unless a peer has. Raises TooMany.

    Its address alone, which others may share, is not made to wait for what a token's bearer sends.
    """
    if "onefold.peer" not in request.scope:
        wait_s = request.app.state.buckets.owe(client_of(request), more)
        if wait_s > 0:
            raise TooMany(wait_s)


class Turns:
    """How many costly answers, such as lists, a worker makes at once; half for one client. of: their plural."""

    def __init__(self, at_once: int, of: str = "lists and histories") -> None:
        self._at_once, self._plural = at_once, of
        self._of = Counter[str]()

    @contextmanager
    def turn(self, request: Request, worth: int = 1) -> Iterator[None]:
        """For one answer, or one that counts as more; one that a peer passed on has its turn there. Raises TooMany."""
        if "onefold.peer" in request.scope:
            yield
            return
        client = client_of(request)
        if self._of.total() + worth > self._at_once or self._of[client] + worth - 1 >= self._at_once / 2:
            raise TooMany(1.0, f"{self._of.total()} {self._plural} are being answered here, {self._of[client]} to you")
        self._of[client] += worth
        try:
            yield
        finally:
            self._of[client] -= worth
            self._of += Counter()  # forgets who has none


class HeldBytes:
    """How many bytes of bodies, whole or not, a worker holds until it has answered them; one client gets half of them.

    What has arrived counts, not what Content-Length promises, so that nobody takes room by a promise.
    """

    def __init__(self) -> None:
        self._of = Counter[str]()

    @contextmanager
    def counting(self, scope: Scope, receive: Receive) -> Iterator[Receive]:
        """A `receive` for one request that raises NotReady; what a peer passed on was counted there."""
        if "onefold.peer" in scope:
            yield receive
            return
        client, held = client_of(Request(scope)), 0

        async def counted_receive() -> Message:
            nonlocal held
            message = await receive()
            size = len(message.get("body", b""))
            if self._of.total() + size > MAX_HELD_BYTES or self._of[client] + size > MAX_HELD_BYTES / 2:
                raise NotReady(f"bodies of {self._of.total()} bytes are held here, {self._of[client]} for you")
            held += size
            self._of[client] += size
            return message

        try:
            yield counted_receive
        finally:
            self._of[client] -= held
            self._of += Counter()  # forgets who has none


class RateLimit:
    """ASGI middleware: 429 for a client address that asks too often, 503 on a connection too many.

    Requests that peers pass on were counted there.

    spared: paths of probes, which may come from the clients' address: a refused probe must not end a worker that is
    merely busy. With a query they count, because they may cost a hop.
    """

    def __init__(self, app: ASGIApp, buckets: Buckets, spared: frozenset[str] = frozenset()) -> None:
        self.app = app
        self.buckets = buckets
        self.spared = spared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] == "http" and not self._spares(scope):
            if CROWDED in scope:
                refusal = not_ready("no more connections here; fix: close some, or raise ONEFOLD_MAX_CONNECTIONS")
            elif "onefold.peer" not in scope:
                refusal = too_fast(scope, self.buckets)
        await (refusal or self.app)(scope, receive, send)

    def _spares(self, scope: Scope) -> bool:
        return scope["path"] in self.spared and not scope["query_string"]


def too_fast(scope: Scope, buckets: Buckets) -> JSONResponse | None:
    """429 when the client's address asks too often; counts this request."""
    wait_s = buckets.take(address_of(scope))
    return too_many(TooMany(wait_s)) if wait_s > 0 else None


def client_of(request: Request) -> str:
    """What a request is counted by: the `sub` of its token, or without authentication its address."""
    caller = caller_of(request)
    return f"subject {caller.subject}" if caller else address_of(request.scope)


def address_of(scope: Scope) -> str:
    """What a request is counted by as long as nobody knows who sent it."""
    return f"address {counted((scope.get('client') or ('unknown',))[0])}"


@lru_cache(1_000)
def counted(address: str) -> str:
    """The address that a client can't choose: of IPv6 it has a whole /64. Anything else counts as it is."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv4Address):
        return address
    return str(known.ipv4_mapped or ipaddress.IPv6Network((int(known), 64), strict=False))


class TargetLimit:
    """ASGI middleware: 414 for a path and query that are too long."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            answer = problem(414, "request.uri_too_long", f"path and query may have {MAX_TARGET_BYTES} bytes together")
            await answer(scope, receive, send)
            return
        await self.app(scope, receive, send)


class TimeLimit:
    """ASGI middleware: 503 for an answer that has not begun after `max_s`; one that has, as a stream, may go on."""

    def __init__(self, app: ASGIApp, max_s: float = MAX_ANSWER_S) -> None:
        self.app = app
        self.max_s = max_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            if not begun:
                begun = True
                limit.reschedule(None)
            await send(message)

        try:
            async with asyncio.timeout(self.max_s) as limit:
                await self.app(scope, receive, noted)
        except TimeoutError:
            if begun:
                raise
            answer = not_ready(f"no answer within {self.max_s:.0f} s; a command may have been taken: use its key again")
            await answer(scope, receive, send)


class SecureHeaders:
    """ASGI middleware: security headers for browsers. No answer but the page is one; none may be framed or cached."""

    def __init__(self, app: ASGIApp, *, secure: bool, docs: frozenset[str], page: str) -> None:
        """secure: send Strict-Transport-Security. docs: paths of pages, which load scripts and get no such headers.

        page: how the paths of a page begin that loads nothing from elsewhere.
        """
        self.app = app
        self.docs = docs
        self.page = page
        self.headers = dict(HEADERS)
        if secure:
            self.headers[b"strict-transport-security"] = b"max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = self.headers if scope["path"] not in self.docs else {}
        if scope["path"].startswith(self.page):
            headers = {**headers, b"content-security-policy": PAGE_POLICY}

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                theirs = [header for header in message["headers"] if header[0] not in headers]  # ASGI: lower case
                message = {**message, "headers": [*theirs, *headers.items()]}
            await send(message)

        await self.app(scope, receive, with_headers)


class BugsAs500:
    """ASGI middleware: answers a bug with a 500 without the traceback, and logs it with the traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            await on_bug(scope["path"], error)(scope, receive, send)
