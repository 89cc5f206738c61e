"""The demo's HTTP client: asks the workers in turn, many at once, and repeats what a worker could not answer yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import cycle
from typing import Any, Self

import aiohttp

from shared.dev.stages import StageFailed

AT_ONCE = 32
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
    """For one event loop, inside `async with`. A repeat is harmless: a command's key makes it the same command."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._next = cycle(urls)
        self._turns = asyncio.Semaphore(AT_ONCE)
        # aiohttp: four times as fast as httpx in this loop of 23,570 requests
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str) -> Answer:
        """Raises StageFailed, as `post` does, when there is no such answer in time, or another."""
        return await self._ask("GET", path, None, {})

    async def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
        return await self._ask("POST", path, body, headers)

    async def from_all(self, path: str) -> list[dict[str, Any]]:
        """What every worker says that can answer just now."""
        words = []
        for url in self._urls:
            status, said = await self._attempt("GET", url + path, None, {})
            if status == HTTPStatus.OK:
                words.append(said)
            elif status not in _NOT_YET:
                raise _unexpected(f"GET {path}", status, said)
        return words

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


def _unexpected(request: str, status: int, said: dict[str, Any]) -> StageFailed:
    return StageFailed(f"{request}: {status} {said}", "mend what the workers' logs say, then run again")
