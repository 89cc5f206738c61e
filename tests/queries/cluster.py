"""Helpers of this folder's tests, for accounts on several workers."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx
from yarl import URL

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from shared.http.peers import PEER_HEADER, peer_tokens
from shared.kafka.murmur2 import partition_of
from shared.runtime.settings import Settings
from tests.accounts.topology import TOPOLOGY
from tests.waiting import Deadline

DEADLINE_S = 60.0
PARTITIONS = TOPOLOGY.partitions


def path_of(account_id: str) -> str:
    return f"/accounts/{quote(account_id, safe='')}"


def as_peer(url: str) -> dict[str, str]:
    """The headers that mark a GET of the URL as forwarded by another worker."""
    return {PEER_HEADER: peer_tokens(TOPOLOGY.service, Settings()).sign(None, "GET", URL(url, encoded=True))}


def keys_in(partition: int, prefix: str) -> Iterator[str]:
    """An endless series of ids in the partition."""
    number = 0
    while True:
        number += 1
        if partition_of(f"{prefix}-{number}".encode(), PARTITIONS) == partition:
            yield f"{prefix}-{number}"


def key_of(stack: Stack, worker: Worker, prefix: str) -> str:
    """An id that the worker owns now, and that no test had before."""
    return next(keys_in(owned_by(stack, worker)[0], f"{prefix}-{uuid.uuid4().hex[:8]}"))


def owned_by(stack: Stack, worker: Worker) -> list[int]:
    """The partitions that a worker owns, according to the ready workers."""
    return sorted(partition for partition, url in owners(stack).items() if url == worker.url)


def owners(stack: Stack) -> dict[int, str]:
    """The owner of each partition; asks until all ready workers agree and each partition has an owner."""
    deadline = Deadline(DEADLINE_S)
    while True:
        running = [worker.url for worker in stack.workers if worker.exit_code is None and worker.is_ready()]
        views = [httpx.get(f"{url}/cluster", timeout=30).json()["owners"]["accounts"] for url in running]
        agreed = bool(views) and all(view == views[0] for view in views) and len(views[0]) == PARTITIONS
        if agreed and set(views[0].values()) == set(running):
            return {int(partition): url for partition, url in views[0].items()}
        deadline.check(f"the owners never settled: {views}")
        time.sleep(0.2)


@asynccontextmanager
async def client() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=DEADLINE_S, limits=limits) as http:
        yield http


async def fill(http: httpx.AsyncClient, url: str, balances: Mapping[str, int]) -> None:
    """Opens the accounts and charges each with its balance."""
    turns = asyncio.Semaphore(20)

    async def one(account_id: str, cents: int) -> None:
        async with turns:
            await post(http, url + path_of(account_id))
            await post(http, f"{url}{path_of(account_id)}/charges", {"amount_cents": cents})

    await asyncio.gather(*(one(account_id, cents) for account_id, cents in balances.items()))


async def post(http: httpx.AsyncClient, url: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
    """The answer to an accepted command; sent again, with the same key, while the answer is 503."""
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    answer = await answered(partial(http.post, url, json=body, headers=headers))
    if answer.status_code == 202:  # the owner was lost before the command was decided
        base, location = url[: url.index("/accounts")], answer.headers["location"]
        answer = await eventually(lambda: http.get(base + location), lambda a: a.status_code not in (404, 503))
    assert answer.status_code == 201, (url, answer.status_code, answer.text)
    return answer


async def answered(ask: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """The first answer but 503, after which callers ask again: an owner may change, or be too busy, at any time."""
    return await eventually(ask, lambda answer: answer.status_code != 503)


async def eventually(
    ask: Callable[[], Awaitable[httpx.Response]], done: Callable[[httpx.Response], bool], deadline_s: float = DEADLINE_S
) -> httpx.Response:
    """The first answer that is `done`."""
    deadline = Deadline(deadline_s)
    while not done(answer := await ask()):
        deadline.check((answer.status_code, answer.text))
        await asyncio.sleep(0.1)
    return answer


async def pages(http: httpx.AsyncClient, url: str, **query: Any) -> AsyncIterator[dict[str, Any]]:
    """Every page of a list; a page is asked for again while the answer is 503."""
    cursor = None
    while True:
        params = {**query, **({"cursor": cursor} if cursor else {})}
        ask = partial(http.get, f"{url}/accounts", params=params)
        answer = await answered(ask)
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        yield page
        cursor = page["cursor"]
        if cursor is None:
            return


async def items(http: httpx.AsyncClient, url: str, **query: Any) -> list[tuple[str, int]]:
    """(id, balance) of every row of a list."""
    return [pair for page in [p async for p in pages(http, url, **query)] for pair in shown(page)]


def shown(page: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [(item["account_id"], item["balance_cents"]) for item in page["items"]]


def statuses(page: Mapping[str, Any], partitions: Iterable[int]) -> set[str]:
    wanted = set(partitions)
    return {part["status"] for part in page["partitions"] if part["partition"] in wanted}
