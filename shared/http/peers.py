"""One hop to the worker that can answer: only to allowed peers, and with nothing but the caller's verified authority.

The caller's own token stays here. A peer learns who the caller is from a token that this worker signs with the workers'
shared secret, valid for one peer, method, target and body and for seconds; docs/adr/0006 says why.
"""

from __future__ import annotations

import fnmatch
import hashlib
import ipaddress
import re
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import jwt
import structlog
from fastapi import Request, Response
from jwt import PyJWK
from starlette.types import ASGIApp, Receive, Scope, Send
from yarl import URL

from shared.domain.errors import NotReady
from shared.http.auth import Authority, caller_of, own_rows
from shared.http.limits import Buckets, framings, read_body, replayed, too_fast
from shared.http.problems import MEDIA_TYPE, Problem, problem
from shared.privacy import sealing
from shared.runtime.clock import as_utc, brokers_clock
from shared.runtime.settings import Settings, host_and_port

log = structlog.get_logger(__name__)

T = TypeVar("T")

PEER_HEADER = "Onefold-Peer"
LINES = "application/x-ndjson"
EVENTS = "text/event-stream"
CONNECT_S = 1.0
ANSWER_S = 3.0  # on top of the caller's wait; a peer that takes longer is frozen or cut off
SILENT_S = 60.0  # a stream is pinged more often
TOKEN_S = 30.0  # allows for clocks that differ by so much, either way
FORWARDED = (
    "accept",
    "content-type",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "last-event-id",
    "occurred-at",
    "prefer",
    "traceparent",
)
RETURNED = ("content-type", "etag", "location", "retry-after")

_HEADER = PEER_HEADER.lower().encode()
_ALGORITHM = "HS256"
_ISSUER = "onefold-peer"
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # servers let them in, clients send none
_KEPT = bytes(range(0x21, 0x7F)).decode().replace("#", "")  # # would begin a URL's fragment; a request target has none


class PeerCall(NamedTuple):
    """A request that another worker passed on.

    authority: its caller's; None when authentication is off. digest: of its body, as that worker sent it.
    """

    authority: Authority | None
    digest: str


class ClocksDiffer(Exception):
    """A worker of ours signed a request, by its clock, longer ago or later than TOKEN_S."""


class PeerTokens:
    """Signs and verifies the tokens that one worker of a service sends to another. url: where others call this one."""

    def __init__(self, service: str, secret: str, url: str) -> None:
        self._issuer = f"{_ISSUER}/{service}"
        self._key = PyJWK({"kty": "oct", "k": urlsafe_b64encode(secret.encode()).decode()}, _ALGORITHM)  # read once
        self._url = url

    def sign(self, authority: Authority | None, method: str, url: URL, body: bytes = b"") -> str:
        """url: the whole one, at the peer."""
        claims = {
            "iss": self._issuer,
            "aud": str(url.origin()),
            "exp": brokers_clock.now() + TOKEN_S,
            "target": f"{method} {url.raw_path_qs}",
            "body": _digest(body),
            "authority": authority.model_dump(mode="json") if authority else None,
        }
        return jwt.encode(claims, self._key, _ALGORITHM)

    def verify(self, token: str, method: str, target: str) -> PeerCall:
        """Raises jwt.InvalidTokenError; ValueError for a token of another request; ClocksDiffer."""
        claims = jwt.decode(
            token,
            self._key,
            algorithms=[_ALGORITHM],
            audience=self._url,
            issuer=self._issuer,
            options={"require": ["aud", "exp", "iss"], "verify_exp": False},
        )
        if claims["target"] != f"{method} {target}":
            raise ValueError("the token is for another request")
        now, signed_at = brokers_clock.now(), float(claims["exp"]) - TOKEN_S
        if not abs(now - signed_at) <= TOKEN_S:  # nor if it is no number
            raise ClocksDiffer(f"it was signed at {as_utc(signed_at)}, and here it is {as_utc(now)}")
        return PeerCall(Authority.model_validate(claims["authority"]) if claims["authority"] else None, claims["body"])


def peer_tokens(service: str, settings: Settings) -> PeerTokens:
    return PeerTokens(service, settings.peer_secret.get_secret_value(), settings.url)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def is_hop(request: Request) -> bool:
    """Whether another worker passed the request on; then this worker must not pass it on again."""
    return peer_call(request) is not None


def peer_call(request: Request) -> PeerCall | None:
    found: PeerCall | None = request.scope.get("onefold.peer")
    return found


class PeerCalls:
    """ASGI middleware: verifies requests of our workers; one that only claims to be gets 401, or 429 as any other."""

    def __init__(self, app: ASGIApp, tokens: PeerTokens, buckets: Buckets) -> None:
        self.app = app
        self.tokens = tokens
        self.buckets = buckets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = dict(scope.get("headers", ())).get(_HEADER)
        if scope["type"] == "http" and token is not None:
            try:
                call = self.tokens.verify(token.decode("latin-1"), scope["method"], _target(scope))
            except (jwt.InvalidTokenError, ValueError, OverflowError, ClocksDiffer) as error:
                refused = _out_of_time if isinstance(error, ClocksDiffer) else _unknown
                refusal = too_fast(scope, self.buckets) or refused(f"{type(error).__name__}: {error}")
                await refusal(scope, receive, send)
                return
            scope["onefold.peer"] = call
        await self.app(scope, receive, send)


class PeerBodies:
    """ASGI middleware inside BodyLimit: 401 for a request of our workers with another body than was signed."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: PeerCall | None = scope.get("onefold.peer")
        if call is not None:
            body = b""
            if framings(scope):
                body = await read_body(receive)
                receive = replayed(body, receive)
            if _digest(body) != call.digest:
                await _unknown("the token is for another body")(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _unknown(reason: str) -> Response:
    log.warning("a peer's token was not signed by a worker of ours", reason=reason)
    return problem(401, "peer.unknown", "not a request from one of our workers")


def _out_of_time(reason: str) -> Response:
    fix = "synchronise the clocks of all workers, as by NTP"
    log.warning("a peer's clock and ours differ, or its request was sent again", reason=reason, fix=fix)
    return problem(401, "peer.clock", f"{reason}; fix: {fix}")


class AllowedPeers:
    """Where a worker may call: the URL that a member of the group gives for itself is not trusted."""

    def __init__(self, patterns: str) -> None:
        self._patterns = [host_and_port(pattern) for pattern in patterns.split(",")]
        self.allow = lru_cache(1_000)(self._allow)

    def _allow(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
        except ValueError:  # of an address or a port that can't be
            return False
        # nothing but these may be there: the target of a request is appended, and would be part of a fragment
        if url not in (f"http://{parts.netloc}", f"https://{parts.netloc}") or "@" in parts.netloc:
            return False
        return any(_is_of(host, pattern) for pattern, only in self._patterns if only in (None, port))


_PORTS = {"http": 80, "https": 443}


def _is_of(host: str, pattern: str) -> bool:
    """pattern: a network, or a name with wildcards."""
    network, address = _network(pattern), _network(host)
    if network is None:
        return fnmatch.fnmatchcase(host, pattern)
    return address is not None and _contains(network, address)


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _network(text: str) -> _Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def _contains(outer: _Network, inner: _Network) -> bool:
    return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type]


class Peers:
    """Passes a request on to the worker that can answer it, with the headers in FORWARDED only, one hop at most.

    service   whose workers they are. settings: where they may be, and the secret by which they know each other.
    """

    def __init__(self, service: str, settings: Settings) -> None:
        self._tokens = peer_tokens(service, settings)
        self._allowed = AllowedPeers(settings.peers)
        self._session: aiohttp.ClientSession | None = None

    async def forward(
        self, request: Request, owner: str | None, wait_s: float = 0.0, *, with_body: bool = True
    ) -> Response:
        """The owner's answer: JSON or a problem. Raises NotReady without an owner, or when no worker of ours answers.

        with_body: of a route without a guard, the body has no limit, and may not be read.
        The owner checks no other token of a peer and never rate-limits it, so a 401 or 429 is ours, not the caller's.
        """
        if is_hop(request):
            raise NotReady("the owner of this key is moving")
        body = await request.body() if with_body else b""
        try:
            async with self._passed_on(request, owner, body, _timeout(wait_s)) as answer:
                if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS):
                    raise NotReady(f"the owner {owner} does not accept us as its peer: {await _reason(answer)}")
                if not _of_a_worker(answer):
                    found = f"{answer.status} {answer.content_type}"
                    raise NotReady(f"at the owner's address {owner}, something that is no worker answers {found}")
                kept = {
                    name: value
                    for name, value in answer.headers.items()
                    if name.lower() in RETURNED or name.lower().startswith("onefold-")
                }
                return Response(await answer.read(), answer.status, headers=kept)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NotReady(f"the owner {owner} does not answer: {type(error).__name__}") from error

    async def lines(
        self, request: Request, owner: str | None, body: bytes, wait_s: float
    ) -> AsyncGenerator[Sequence[bytes]]:
        """The lines with which the owner answers those of `body`, as they come; wait_s: for each. Raises NotReady."""
        sealed_and_decided_s = sealing.ANSWER_S + wait_s  # of one line; the others are not waited for
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=sealed_and_decided_s + ANSWER_S)
        try:
            async with self._passed_on(request, owner, body, timeout) as answer:
                if answer.status != HTTPStatus.OK or answer.content_type != LINES:
                    raise NotReady(f"the owner {owner} does not take our lines: {await _reason(answer)}")
                rest = b""
                async for part in answer.content.iter_any():
                    *whole, rest = (rest + part).split(b"\n")
                    yield [line + b"\n" for line in whole]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NotReady(f"the owner {owner} does not answer: {type(error).__name__}") from error

    @asynccontextmanager
    async def stream(self, request: Request, owner: str) -> AsyncIterator[AsyncIterator[str]]:
        """The Server-Sent Events with which the owner answers, each as it was sent. Raises NotReady."""
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENT_S)
        try:
            async with self._passed_on(request, owner, b"", timeout) as answer:
                if answer.status != HTTPStatus.OK or answer.content_type != EVENTS:
                    raise NotReady(f"{owner} does not stream: {await _reason(answer)}")
                yield _events(answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NotReady(f"{owner} does not answer: {type(error).__name__}") from error

    def _passed_on(
        self, request: Request, owner: str | None, body: bytes, timeout: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """The request, or with this body a part of it, as its owner answers it. Raises NotReady without one."""
        if owner is None:
            raise NotReady("the owner of this key is not known yet")
        url = self._checked(owner, _target(request.scope))
        lines = ((name, line) for name in FORWARDED for line in request.headers.getlist(name))
        headers = [(name, _CONTROLS.sub(" ", line)) for name, line in lines]
        headers += self._signed(request, request.method, url, body).items()
        return self._connected().request(
            request.method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False
        )

    async def ask(
        self, request: Request, owner: str, path: str, params: Mapping[str, Any], read: Callable[[Any], T]
    ) -> T:
        """The owner's own part of an answer; `read` gets its JSON. Raises NotReady when it can't be had, or read."""
        url = self._checked(owner, str(URL(path, encoded=True).with_query(params)))
        headers = self._signed(request, "GET", url)
        try:
            async with self._connected().get(
                url, headers=headers, timeout=_timeout(0), allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    raise NotReady(f"{owner} answers {answer.status}")
                return read(await answer.json())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NotReady(f"{owner} does not answer: {type(error).__name__}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise NotReady(f"{owner} answers what can't be read: {type(error).__name__}") from error

    def _checked(self, owner: str, target: str) -> URL:
        if not self._allowed.allow(owner):
            log.warning("a member's address is not an allowed peer, so it is not called", url=owner)
            raise NotReady("the owner of this key is not an allowed peer")
        return URL(owner + target, encoded=True)

    def _signed(self, request: Request, method: str, url: URL, body: bytes = b"") -> dict[str, str]:
        own_rows(request)  # the peer, which is told who asks, keeps to them
        return {PEER_HEADER: self._tokens.sign(caller_of(request), method, url, body)}

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            # the default is 100 to all peers together: requests that wait would keep out the others
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """Until the owner ends, as every stream may: a client resumes it."""
    rest = b""
    with suppress(aiohttp.ClientError, TimeoutError):
        async for part in answer.content.iter_any():
            *whole, rest = (rest + part).split(b"\n\n")
            for event in whole:
                yield event.decode()


def _target(scope: Scope) -> str:
    """Path and query as they were sent: an id may hold an encoded `?` or `%`. What a URL can't hold is encoded."""
    path, query = (quote(scope[part], safe=_KEPT) for part in ("raw_path", "query_string"))
    return f"{path}?{query}" if query else path


def _of_a_worker(answer: aiohttp.ClientResponse) -> bool:
    """Whether a worker answers so; a proxy, or another program at a reused address, answers in another way."""
    if answer.status < 300:
        return answer.content_type == "application/json"
    if answer.status < 400:
        return answer.status == HTTPStatus.NOT_MODIFIED
    gateways = answer.status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT)
    return answer.content_type == MEDIA_TYPE and not gateways


async def _reason(answer: aiohttp.ClientResponse) -> str:
    """What a worker says of why it refuses us; its status if something else answers."""
    with suppress(ValueError):
        return Problem.model_validate_json(await answer.read()).detail
    return str(answer.status)


def _timeout(wait_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=wait_s + ANSWER_S, connect=CONNECT_S)
