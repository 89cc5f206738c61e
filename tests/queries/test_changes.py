"""Streams of changes from real workers, resumed at another worker when theirs is killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle

import httpx
import pytest

from shared.dev.stack import Stack
from tests.queries.cluster import client, key_of, path_of, post

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

CHARGES = 15


@dataclass
class Follower:
    """Reads a stream as a browser does: when it breaks off, it resumes at the next worker after the last id."""

    http: httpx.AsyncClient
    urls: list[str]
    params: dict[str, str] = field(default_factory=dict)
    told: dict[str, list[int]] = field(default_factory=dict)
    last_id: str | None = None
    streams: int = 0
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        for url in cycle(self.urls):
            headers = {"Last-Event-ID": self.last_id} if self.last_id else {}
            with suppress(httpx.TransportError):
                async with self.http.stream("GET", f"{url}/changes/accounts", params=self.params, headers=headers) as s:
                    if s.status_code == 200:
                        self.streams += 1
                        await self._read(s.aiter_lines())
            await asyncio.sleep(0.1)

    async def _read(self, lines: AsyncIterator[str]) -> None:
        data = ""
        async for line in lines:
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
            elif line.startswith("id: "):
                self.last_id = line.removeprefix("id: ")
            elif not line and data:
                change, data = json.loads(data), ""
                self.told.setdefault(change["key"], []).append(change["sequence"])
            self.heard.set()

    async def begun(self) -> None:
        await self._until(lambda: self.last_id is not None)

    async def until_told(self, expected: dict[str, list[int]]) -> None:
        await self._until(lambda: all(self.told.get(key, [])[-1:] >= told[-1:] for key, told in expected.items()))

    async def _until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not done():
                self.heard.clear()
                await self.heard.wait()


async def test_a_stream_misses_and_repeats_nothing_when_its_worker_is_killed(cluster: Stack) -> None:
    """The owner of half of the keys, another worker, is killed, too."""
    first, second, third = cluster.workers
    keys = [key_of(cluster, worker, f"told-{i}") for i in range(4) for worker in (second, third)]
    expected = {key: list(range(1, CHARGES + 2)) for key in keys}
    async with client() as http:
        follower = Follower(http, [first.url, second.url])
        following = asyncio.ensure_future(follower.run())
        await follower.begun()

        async def write(key: str) -> None:
            await post(http, second.url + path_of(key))
            for _ in range(CHARGES):
                await post(http, f"{second.url}{path_of(key)}/charges", {"amount_cents": 1})

        writing = asyncio.gather(*map(write, keys))
        await follower.until_told({key: [1] for key in keys[:1]})
        await asyncio.to_thread(first.kill)
        await asyncio.to_thread(third.kill)
        await writing
        await follower.until_told(expected)
        following.cancel()
    assert follower.streams >= 2
    assert {key: follower.told[key] for key in keys} == expected


async def test_every_worker_streams_the_changes_of_every_key(cluster: Stack) -> None:
    key = key_of(cluster, cluster.workers[0], "anywhere")
    async with client() as http:
        followers = [Follower(http, [url], {"key": key}) for url in cluster.urls("accounts")]
        following = [asyncio.ensure_future(follower.run()) for follower in followers]
        for follower in followers:
            await follower.begun()
        await post(http, cluster.workers[1].url + path_of(key))
        await post(http, f"{cluster.workers[1].url}{path_of(key)}/charges", {"amount_cents": 3})
        for follower in followers:
            await follower.until_told({key: [1, 2]})
            assert follower.told == {key: [1, 2]}
        for task in following:
            task.cancel()
