"""An account's history from three workers: whichever is asked, whichever was killed, whatever retention removed."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from typing import Any

import httpx
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from shared.dev.stack import Stack
from shared.kafka.murmur2 import partition_of
from shared.kafka.offsets import Offsets
from shared.runtime.positions import Place
from tests.accounts.topology import EVENTS
from tests.queries.cluster import PARTITIONS, answered, client, key_of, owners, path_of, post

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

EVENTS_OF_ONE = 260


def balance(sequence: int) -> int:
    return sum(range(2, sequence + 1))


async def charge(http: httpx.AsyncClient, url: str, account_id: str, first: int, last: int) -> httpx.Response:
    """Makes events `first` to `last`, charges of as many cents as their number; returns the last answer."""
    for sequence in range(first, last + 1):
        path = url + path_of(account_id)
        answer = await (
            post(http, path) if sequence == 1 else post(http, f"{path}/charges", {"amount_cents": sequence})
        )
        assert answer.json()["sequence"] == sequence
    return answer


async def history(http: httpx.AsyncClient, url: str, account_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: int | None = 0
    while cursor is not None:
        answer = await answered(partial(http.get, f"{url}{path_of(account_id)}/events?cursor={cursor}&limit=100"))
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        cursor = answer.json()["cursor"]
    return found


@pytest.mark.long  # in short, a short one, and a stream of changes
async def test_every_worker_returns_a_long_history_in_full_even_after_its_owner_was_killed(cluster: Stack) -> None:
    owner, others = cluster.workers[0], cluster.workers[1:]
    key = key_of(cluster, owner, "storied")
    neighbours = [f"{key}-n{i}" for i in range(5)]
    async with client() as http:
        writing = [charge(http, others[0].url, each, 1, 60) for each in neighbours]
        await asyncio.gather(charge(http, others[0].url, key, 1, EVENTS_OF_ONE), *writing)
        for url in cluster.urls("accounts"):
            await _whole(http, url, key)
        await asyncio.to_thread(owner.kill)
        for worker in others:
            await _whole(http, worker.url, key)
        await charge(http, others[1].url, key, EVENTS_OF_ONE + 1, EVENTS_OF_ONE + 5)
        assert [each["sequence"] for each in await history(http, others[0].url, key)] == [*range(1, EVENTS_OF_ONE + 6)]


async def _whole(http: httpx.AsyncClient, url: str, key: str) -> None:
    """Checks all pages, and the row as of sequences at the edges of index entries and as of their times."""
    found = await history(http, url, key)
    assert [each["sequence"] for each in found] == list(range(1, EVENTS_OF_ONE + 1))
    assert [each["data"].get("amount_cents") for each in found[1:]] == list(range(2, EVENTS_OF_ONE + 1))
    behind = await answered(partial(http.get, f"{url}{path_of(key)}/events", params={"cursor": 10 * EVENTS_OF_ONE}))
    assert behind.json() == {"items": [], "cursor": None}
    for sequence in (1, 49, 50, 51, 100, 137, 250, EVENTS_OF_ONE):
        for as_of in (sequence, found[sequence - 1]["occurred_at"]):
            row = (await answered(partial(http.get, url + path_of(key), params={"as_of": as_of}))).json()
            assert (row["sequence"], row["balance_cents"]) == (sequence, balance(sequence)), as_of


async def test_a_history_includes_the_event_just_acknowledged(cluster: Stack) -> None:
    """At once, with a position or without, on the owner and one hop away."""
    async with client() as http:
        for worker in cluster.workers:
            key = key_of(cluster, worker, "prompt")
            for sequence in range(1, 16):
                behind = {"cursor": str(sequence - 1)}
                sent = await charge(http, cluster.workers[0].url, key, sequence, sequence)
                position = {"min_position": sent.headers["onefold-position"], "wait": "5"}
                for params in (behind, behind | position):
                    answer = await answered(
                        partial(http.get, f"{cluster.workers[sequence % 3].url}{path_of(key)}/events", params=params)
                    )
                    assert answer.status_code == 200, answer.text
                    assert [each["sequence"] for each in answer.json()["items"]] == [sequence]
                    assert answer.headers["onefold-position"].startswith("accounts.commands.v1/")


async def test_events_removed_by_retention_are_410_and_later_events_are_served(cluster: Stack) -> None:
    worker = cluster.workers[1]
    key = key_of(cluster, worker, "cut")
    place = Place(EVENTS.name, partition_of(key.encode(), PARTITIONS))
    async with client() as http:
        await charge(http, worker.url, key, 1, 55)
        cut = Offsets(cluster.bootstrap).ends([place])[place]
        await charge(http, worker.url, key, 56, 70)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for removed in admin.delete_records([TopicPartition(*place, cut)]).values():
            await asyncio.to_thread(removed.result)
        for url in cluster.urls("accounts"):
            gone = await answered(partial(http.get, f"{url}{path_of(key)}/events"))
            assert (gone.status_code, gone.json()["code"]) == (410, "history.archived")
            assert "only after event 55:" in gone.json()["detail"]
            rest = (await answered(partial(http.get, f"{url}{path_of(key)}/events", params={"cursor": 55}))).json()
            assert [each["sequence"] for each in rest["items"]] == list(range(56, 71))
            for as_of, expected in ((50, 200), (53, 410), (70, 200)):
                answer = await answered(partial(http.get, url + path_of(key), params={"as_of": as_of}))
                assert answer.status_code == expected, answer.text


@pytest.mark.long  # in short, robbed_of_their_stores, in tests/faults
async def test_a_worker_that_lost_its_disk_restores_history_with_the_rows(cluster: Stack) -> None:
    worker, other = cluster.workers[2], cluster.workers[0]
    key = key_of(cluster, worker, "restored")
    async with client() as http:
        await charge(http, other.url, key, 1, 120)
        await asyncio.to_thread(worker.stop)
        shutil.rmtree(cluster.root / "stores" / worker.name)
        await asyncio.to_thread(worker.start)
        owners(cluster)
        for url in cluster.urls("accounts"):
            assert [each["sequence"] for each in await history(http, url, key)] == list(range(1, 121))
            row = (await answered(partial(http.get, url + path_of(key), params={"as_of": 77}))).json()
            assert row["balance_cents"] == balance(77)
