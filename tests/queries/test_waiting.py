"""Reads that wait: for any number of callers, and no longer than their callers do."""

from __future__ import annotations

import asyncio
from functools import partial

import httpx
import pytest

from shared.dev.stack import Stack
from tests.queries.cluster import answered, client, eventually, key_of, path_of, post

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

WAITERS = 200
WOKEN_S = 15  # half of what they would wait if nothing woke them


async def test_all_waiters_are_answered_when_the_condition_is_met(cluster: Stack) -> None:
    async with client() as http:
        owner = cluster.workers[0]
        path = path_of(key_of(cluster, owner, "awaited"))
        await post(http, owner.url + path)
        urls = [cluster.urls("accounts")[i % 3] + path for i in range(WAITERS)]
        wishes = {"until": "balance_cents:500", "wait": "30"}
        reads = [asyncio.ensure_future(answered(partial(http.get, url, params=wishes))) for url in urls]
        await _waiting(http, owner.url, WAITERS)
        await post(http, f"{owner.url}{path}/charges", {"amount_cents": 499})
        assert (await http.get(owner.url + path)).json()["balance_cents"] == 499
        assert not any(read.done() for read in reads)
        await post(http, f"{owner.url}{path}/charges", {"amount_cents": 1})
        answers = await asyncio.wait_for(asyncio.gather(*reads), WOKEN_S)
        assert {answer.json()["balance_cents"] for answer in answers} == {500}
        assert {answer.headers["onefold-until"] for answer in answers} == {"met"}
        await _waiting(http, owner.url, 0)


async def test_no_waiter_is_left_after_its_time_out(cluster: Stack) -> None:
    async with client() as http:
        owner = cluster.workers[0]
        path = path_of(key_of(cluster, owner, "late"))
        await post(http, owner.url + path)
        wishes = {"until": "balance_cents:1", "wait": "2"}
        answers = await asyncio.gather(*(http.get(owner.url + path, params=wishes) for _ in range(50)))
        assert {answer.headers["onefold-until"] for answer in answers} == {"unmet"}
        await _waiting(http, owner.url, 0)


async def test_no_waiter_is_left_after_its_caller_hangs_up(cluster: Stack) -> None:
    """On the owner, and one hop away."""
    async with client() as http:
        owner = cluster.workers[0]
        path = path_of(key_of(cluster, owner, "gone"))
        await post(http, owner.url + path)
        async with client() as leaving:
            wishes = {"until": "balance_cents:1", "wait": "30"}
            urls = [cluster.urls("accounts")[i % 3] + path for i in range(30)]
            reads = [asyncio.ensure_future(leaving.get(url, params=wishes)) for url in urls]
            await _waiting(http, owner.url, 30)
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
        await _waiting(http, owner.url, 0, deadline_s=WOKEN_S)


async def test_a_waiter_whose_key_moves_gets_503_and_is_not_left_waiting(cluster: Stack) -> None:
    async with client() as http:
        owner, other = cluster.workers[0], cluster.workers[1]
        path = path_of(key_of(cluster, owner, "moving"))
        await post(http, owner.url + path)
        read = asyncio.ensure_future(
            http.get(other.url + path, params={"until": "balance_cents:1", "wait": "30"}, timeout=60)
        )
        await _waiting(http, owner.url, 1)
        await asyncio.to_thread(owner.stop)
        answer = await asyncio.wait_for(read, WOKEN_S)
        assert answer.status_code == 503


async def _waiting(http: httpx.AsyncClient, url: str, count: int, deadline_s: float = 30) -> None:
    """Returns when `count` reads wait at the worker."""
    await eventually(lambda: http.get(f"{url}/cluster"), lambda a: a.json()["waiting"] == count, deadline_s)
