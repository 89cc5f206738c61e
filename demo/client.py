"""The demo's HTTP client: asks the workers in turn, many requests at once, and retries those answered "not yet"."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import cycle
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from shared.dev.stages import StageFailed

AT_ONCE = 32
PAGE = 500
PATIENCE_S = 60.0
_PAUSE_S = 0.5
_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)
_UNREACHABLE = 0
_NOT_YET = (_UNREACHABLE, HTTPStatus.SERVICE_UNAVAILABLE)
_EXPECTED = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)


@dataclass(frozen=True, slots=True)
class Answer:
    """status: 200, 201, 202, 404 or 409. seconds: since the first attempt."""

    status: int
    body: dict[str, Any]
    seconds: float


class Client:
    """For one event loop, inside `async with`. A retry is harmless: its key makes it the same command."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._next = cycle(urls)
        self._turns = asyncio.Semaphore(AT_ONCE)
        # aiohttp: four times as fast as httpx with many requests at once
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str) -> Answer:
        """Raises StageFailed, as `post` does, for another status than an Answer's, or without an answer in time."""
        return await self._ask("GET", path, None, {})

    async def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
        return await self._ask("POST", path, body, headers)

    async def all_of(self, path: str) -> list[dict[str, Any]]:
        """Every item of a list that is missing no partition: all partitions at once, each page by page."""
        first = await self.get(f"{path}?limit=1&complete=true")
        partitions = [part["partition"] for part in first.body["partitions"]]
        pages = (self._pages(f"{path}?limit={PAGE}&complete=true&partitions={partition}") for partition in partitions)
        return [item for items in await asyncio.gather(*pages) for item in items]

    async def _pages(self, path: str) -> list[dict[str, Any]]:
        page = (await self.get(path)).body
        items: list[dict[str, Any]] = page["items"]
        while page["cursor"]:
            page = (await self.get(f"{path}&cursor={quote(page['cursor'])}")).body
            items += page["items"]
        return items

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Answer:
        async with self._turns:
            began = time.monotonic()
            while True:
                status, said = await self._attempt(method, next(self._next) + path, body, headers)
                seconds = time.monotonic() - began
                if status in _EXPECTED:
                    return Answer(status, said, seconds)
                if status not in _NOT_YET or seconds > PATIENCE_S:
                    raise StageFailed(
                        f"{method} {path}: {status} {said} after {seconds:.0f} s", "see the workers' logs"
                    )
                await asyncio.sleep(_PAUSE_S)

    async def _attempt(
        self, method: str, url: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        try:
            async with self._session.request(method, url, json=body, headers=headers) as response:
                return response.status, await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError) as error:
            return _UNREACHABLE, {"detail": f"{type(error).__name__}: {error}"}
