"""One hop to the worker that owns a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
from fastapi import Request, Response

from shared.es.errors import NotReady

HOP_HEADER = "Onefold-Hop"
TIMEOUT_S = 10.0
FORWARDED = (
    "accept",
    "content-type",
    "idempotency-key",
    "if-none-match",
    "occurred-at",
    "prefer",
    "traceparent",
)
RETURNED = ("content-type", "etag", "location", "retry-after")


class Peers:
    """Passes a request on to its owner, with the headers above and no others."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def forward(self, request: Request, owner: str | None) -> Response:
        """The owner's answer. Raises NotReady when nobody owns the key yet, or the owner can't be reached."""
        if owner is None:
            raise NotReady("the owner of this key is not known yet")
        if HOP_HEADER in request.headers:
            raise NotReady("the owner of this key is moving")
        headers = {name: request.headers[name] for name in FORWARDED if name in request.headers}
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            async with self._connected().request(
                request.method, owner + path, data=await request.body(), headers={**headers, HOP_HEADER: "1"}
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
            async with self._connected().get(owner + path, params=params, headers={HOP_HEADER: "1"}) as answer:
                if answer.status != 200:
                    raise NotReady(f"{owner} answers {answer.status}")
                found: dict[str, Any] = await answer.json()
                return found
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NotReady(f"{owner} does not answer: {type(error).__name__}") from error

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S, connect=1.0)
            self._session = aiohttp.ClientSession(timeout=timeout)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
