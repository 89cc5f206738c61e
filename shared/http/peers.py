"""One hop to the worker that owns a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
from fastapi import Request, Response
from yarl import URL

from shared.es.errors import NotReady

HOP_HEADER = "Onefold-Hop"
CONNECT_S = 1.0
ANSWER_S = 3.0  # a peer that is silent for longer, beyond what the caller wishes to wait, is frozen or cut off
FORWARDED = (
    "accept",
    "content-type",
    "idempotency-key",
    "if-none-match",
    "occurred-at",
    "prefer",
    "traceparent",
)
_PRINTABLE = bytes(range(0x21, 0x7F)).decode()
RETURNED = ("content-type", "etag", "location", "retry-after")


class Peers:
    """Passes a request on to a worker that can answer it, with the headers above and no others."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def forward(self, request: Request, owner: str | None, wait_s: float = 0.0) -> Response:
        """The owner's answer. Raises NotReady when nobody owns the key yet, or the owner can't be reached."""
        if owner is None:
            raise NotReady("the owner of this key is not known yet")
        if HOP_HEADER in request.headers:
            raise NotReady("the owner of this key is moving")
        headers = {name: request.headers[name] for name in FORWARDED if name in request.headers}
        try:
            async with self._connected().request(
                request.method,
                _as_asked(owner, request),
                data=await request.body(),
                headers={**headers, HOP_HEADER: "1"},
                timeout=_timeout(wait_s),
                allow_redirects=False,
            ) as answer:
                kept = {
                    name: value
                    for name, value in answer.headers.items()
                    if name.lower() in RETURNED or name.lower().startswith("onefold-")
                }
                return Response(await answer.read(), answer.status, headers=kept)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NotReady(f"the owner {owner} does not answer: {type(error).__name__}") from error

    async def ask(self, owner: str, path: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The owner's own part of something, as JSON. Raises NotReady when it can't be had."""
        try:
            async with self._connected().get(
                owner + path, params=params, headers={HOP_HEADER: "1"}, timeout=_timeout(0), allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    raise NotReady(f"{owner} answers {answer.status}")
                found: dict[str, Any] = await answer.json()
                return found
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NotReady(f"{owner} does not answer: {type(error).__name__}") from error

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _as_asked(owner: str, request: Request) -> URL:
    """The caller's own path and query at the owner, byte for byte: an id may hold an encoded `?` or `%`."""
    path, query = (quote(request.scope[part], safe=_PRINTABLE) for part in ("raw_path", "query_string"))
    return URL(f"{owner}{path}{'?' if query else ''}{query}", encoded=True)


def _timeout(wait_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=wait_s + ANSWER_S, connect=CONNECT_S)
