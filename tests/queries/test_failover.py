"""Reads while the owner is killed or frozen: answered right or with 503, never wrong, never hung."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx
import pytest

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from tests.faults import broken
from tests.queries.cluster import client, fill, key_of, path_of, post
from tests.waiting import Deadline, eventually

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

LONGEST_ANSWER_S = 20.0  # a request to a frozen peer is given up after 3 s; the machine that runs the tests is busy
BACK_WITHIN_S = 90.0


@dataclass
class Seen:
    """The answers that steady readers got."""

    right: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)

    def note(self, answer: httpx.Response, expected: int) -> None:
        match answer.status_code:
            case 200 if answer.json()["balance_cents"] == expected:
                self.right += 1
            case 503 if "retry-after" in answer.headers:
                self.refused += 1
            case _:
                self.wrong.append(f"{answer.status_code} {answer.text} for {expected}")


@asynccontextmanager
async def steady_reads(
    http: httpx.AsyncClient, urls: Sequence[str], balances: Mapping[str, int], **query: str
) -> AsyncIterator[Seen]:
    """Reads every key through every URL, as long as the block lasts. Raises TimeoutException for a slow answer."""
    seen, stop = Seen(), asyncio.Event()

    async def read(url: str) -> None:
        while not stop.is_set():
            for account_id, cents in balances.items():
                seen.note(await http.get(url + path_of(account_id), params=query, timeout=LONGEST_ANSWER_S), cents)
            await asyncio.sleep(0.05)

    readers = [asyncio.ensure_future(read(url)) for url in urls]
    try:
        yield seen
    finally:
        stop.set()
        await asyncio.gather(*readers)


@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.long)])
async def test_keys_of_a_lost_owner_are_503_until_their_rows_are_right_again(cluster: Stack, how: str) -> None:
    victim, others = cluster.workers[0], cluster.workers[1:]
    keys = [key_of(cluster, worker, f"{how}-{i}") for i, worker in enumerate(cluster.workers * 2)]
    balances = {key: 1000 + i for i, key in enumerate(keys)}
    async with client() as http:
        await fill(http, victim.url, balances)
        async with steady_reads(http, [worker.url for worker in others], balances) as seen:
            await asyncio.to_thread(eventually, lambda: seen.right, lambda right: right >= 4 * len(keys))
            assert seen.refused == 0
            await asyncio.to_thread(getattr(victim, how))
            await _all_right(http, [worker.url for worker in others], balances)
    assert seen.wrong == []


@pytest.mark.long  # in short, the keys of a lost owner are 503
async def test_other_partitions_answer_while_one_owner_is_gone(cluster: Stack) -> None:
    """Only reads of the killed owner's keys are refused, even while the group rebalances."""
    victim, keeper = cluster.workers[0], cluster.workers[1]
    kept = {key_of(cluster, keeper, f"kept-{i}"): 5 + i for i in range(4)}
    lost = {key_of(cluster, victim, "lost"): 1}
    async with client() as http:
        await fill(http, keeper.url, kept | lost)
        async with steady_reads(http, [keeper.url], kept) as seen:
            await asyncio.to_thread(victim.kill)
            await _all_right(http, [keeper.url], lost)
    assert (seen.wrong, seen.refused) == ([], 0)


async def test_a_frozen_owner_is_not_waited_for_and_serves_nothing_stale_when_it_wakes(cluster: Stack) -> None:
    frozen, other, third = cluster.workers
    keys = [key_of(cluster, frozen, f"frozen-{i}") for i in range(4)]
    async with client() as http:
        await fill(http, frozen.url, dict.fromkeys(keys, 10))
        frozen.pause()
        try:
            refused = await http.get(other.url + path_of(keys[0]), timeout=LONGEST_ANSWER_S)
            assert refused.status_code == 503
            for key in keys:
                await post(http, f"{third.url}{path_of(key)}/charges", {"amount_cents": 5})
        finally:
            frozen.resume()
        async with steady_reads(http, [worker.url for worker in cluster.workers], dict.fromkeys(keys, 15)) as seen:
            await _all_right(http, [other.url, third.url], dict.fromkeys(keys, 15))
            await asyncio.to_thread(_await_return, frozen, other)
            await _all_right(http, [worker.url for worker in cluster.workers], dict.fromkeys(keys, 15))
    assert seen.wrong == []


@pytest.mark.long  # in short, with a coordinator that answers
async def test_a_frozen_owner_serves_nothing_stale_when_it_wakes_to_a_coordinator_that_loads(
    cluster: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a coordinator answers heartbeats of anybody."""
    frozen, other, _ = cluster.workers
    frozen.kill()
    monkeypatch.setattr(frozen, "command", broken.command(broken.wakes_to_a_loading_coordinator))
    frozen.start()
    key = key_of(cluster, frozen, "loading")
    async with client() as http:
        await fill(http, frozen.url, {key: 10})
        frozen.pause()
        try:
            await post(http, f"{other.url}{path_of(key)}/charges", {"amount_cents": 5})
        finally:
            frozen.resume()
        async with steady_reads(http, [frozen.url], {key: 15}) as seen:
            await asyncio.to_thread(eventually, lambda: frozen.log.read_text().count(broken.LOADING_ANSWERS) >= 10)
    frozen.kill()
    assert seen.wrong == []


def _await_return(worker: Worker, other: Worker) -> None:
    """Returns when `other` sees that `worker` owns partitions again."""
    eventually(
        lambda: worker.url in httpx.get(f"{other.url}/cluster", timeout=30).json()["owners"]["accounts"].values()
    )
    worker.await_ready()


@pytest.mark.long  # in short, one that is frozen
async def test_a_stopping_worker_serves_nothing_stale(cluster: Stack) -> None:
    """It leaves the group at once while its HTTP side drains; meanwhile the next owner may already write."""
    leaving, other, _ = cluster.workers
    key = key_of(cluster, leaving, "leaving")
    acknowledged = answers = 0
    async with client() as http:

        async def write() -> None:
            nonlocal acknowledged
            while not stopping.done():
                await post(http, f"{other.url}{path_of(key)}/charges", {"amount_cents": 1})
                acknowledged += 1

        await post(http, leaving.url + path_of(key))
        stopping = asyncio.ensure_future(asyncio.to_thread(leaving.stop))
        writing = asyncio.ensure_future(write())
        while not stopping.done():
            known = acknowledged
            with suppress(httpx.TransportError):
                read = await http.get(leaving.url + path_of(key))
                answers += 1
                assert read.status_code == 503 or read.json()["balance_cents"] >= known, read.text
        await asyncio.gather(stopping, writing)
        await _all_right(http, [other.url], {key: acknowledged})
    assert answers > 0


async def _all_right(http: httpx.AsyncClient, urls: Sequence[str], balances: Mapping[str, int]) -> None:
    """Returns when every URL answers every key with 200 and the right balance."""
    deadline = Deadline(BACK_WITHIN_S)
    for url in urls:
        for account_id, cents in balances.items():
            while (answer := await http.get(url + path_of(account_id))).status_code != 200:
                deadline.check(answer.text)
                await asyncio.sleep(0.1)
            assert answer.json()["balance_cents"] == cents
