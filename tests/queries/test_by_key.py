"""Every instance answers for every key, and never with a row older than the position asked for."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest

from shared.dev.stack import Stack
from shared.kafka.murmur2 import partition_of
from tests.queries.cluster import PARTITIONS, answered, as_peer, client, fill, key_of, owners, path_of, post

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

STRANGE_IDS = ["a b", "50%", "%2e", "x?y=1", "x#y", 'quo"te', "Zoë", "日本", "a&b=c", "a;b", "a+b", "..a", "\\", "|"]


async def test_every_worker_gives_the_same_row_for_every_key(cluster: Stack) -> None:
    balances = {account_id: 100 + i for i, account_id in enumerate([*(f"same-{i}" for i in range(60)), *STRANGE_IDS])}
    async with client() as http:
        await fill(http, cluster.urls("accounts")[0], balances)
        found = {
            (url, account_id): await answered(partial(http.get, url + path_of(account_id)))
            for url in cluster.urls("accounts")
            for account_id in balances
        }
    assert {where: answer.status_code for where, answer in found.items()} == dict.fromkeys(found, 200)
    placed = owners(cluster)
    assert {where: answer.headers["onefold-owner"] for where, answer in found.items()} == {
        (url, key): placed[partition_of(key.encode(), PARTITIONS)] for url, key in found
    }
    assert {where: answer.json()["balance_cents"] for where, answer in found.items()} == {
        (url, account_id): cents for url in cluster.urls("accounts") for account_id, cents in balances.items()
    }


async def test_a_write_can_be_read_at_once_on_any_other_worker(cluster: Stack) -> None:
    """The writer does not wait for the decision, so that only the position makes the reader wait for it."""
    dice = random.Random(6)
    urls = cluster.urls("accounts")
    keys = [f"mine-{i}" for i in range(40)]

    async def write_and_read(key: str) -> list[int]:
        await post(http, dice.choice(urls) + path_of(key))
        seen = []
        for turn in range(5):
            writer, reader = dice.sample(urls, 2)
            headers = {"Prefer": "respond-async", "Idempotency-Key": f"{key}-{turn}"}
            charge = partial(http.post, f"{writer}{path_of(key)}/charges", json={"amount_cents": 7}, headers=headers)
            sent = await answered(charge)
            assert sent.status_code in (201, 202), sent.text
            params = {"min_position": sent.headers["onefold-position"], "wait": "20"}
            read = await answered(partial(http.get, reader + path_of(key), params=params))
            assert read.status_code == 200, read.text
            seen.append(read.json()["balance_cents"])
        return seen

    async with client() as http:
        seen = await asyncio.gather(*map(write_and_read, keys))
    assert seen == [[7, 14, 21, 28, 35]] * len(keys)


async def test_a_position_not_reached_in_time_is_503_with_the_offset_reached(cluster: Stack) -> None:
    async with client() as http:
        for worker in cluster.workers:
            account_id = key_of(cluster, worker, "far")
            read = await http.get(worker.url + path_of(account_id))
            topic_and_partition, _, offset = read.headers["onefold-position"].rpartition("@")
            beyond = f"{topic_and_partition}@{int(offset) + 1}"
            late = await http.get(worker.url + path_of(account_id), params={"min_position": beyond, "wait": "0.2"})
            assert (late.status_code, late.headers["retry-after"]) == (503, "1")
            assert f"at offset {offset} of" in late.json()["detail"]


async def test_every_position_an_answer_carries_can_be_asked_for(cluster: Stack) -> None:
    """Also the position of a partition to which nothing was ever written."""
    async with client() as http:
        for url in cluster.urls("accounts"):
            for partition in range(PARTITIONS):
                position = f"accounts.commands.v1/{partition}@-1"
                read = await http.get(f"{url}/accounts/nobody", params={"min_position": position})
                assert read.status_code == 404, read.text
                again = {"min_position": read.headers["onefold-position"]}
                assert (await http.get(f"{url}/accounts/nobody", params=again)).status_code == 404


async def test_an_unchanged_row_is_304_on_the_owner_and_one_hop_away(cluster: Stack) -> None:
    async with client() as http:
        await post(http, cluster.urls("accounts")[0] + path_of("tagged"))
        for url in cluster.urls("accounts"):
            first = await http.get(url + path_of("tagged"))
            same = await http.get(url + path_of("tagged"), headers={"If-None-Match": first.headers["etag"]})
            assert (same.status_code, same.content) == (304, b"")
            other = await http.get(url + path_of("tagged"), headers={"If-None-Match": '"0"'})
            assert other.status_code == 200


async def test_a_forwarded_request_is_not_forwarded_again(cluster: Stack) -> None:
    async with client() as http:
        owner, other = cluster.workers[0], cluster.workers[1]
        account_id = key_of(cluster, owner, "hop")
        await post(http, owner.url + path_of(account_id))
        url = other.url + path_of(account_id)
        refused = await http.get(url, headers=as_peer(url))
        assert refused.status_code == 503


@pytest.mark.long  # in short, waits that are shorter
async def test_a_long_wait_may_exceed_the_time_out_of_a_peer_and_idle_connections_outlast_it(cluster: Stack) -> None:
    owner, other = cluster.workers[0], cluster.workers[1]
    with closing(HTTPConnection(urlsplit(other.url).netloc)) as idle:
        assert _status(idle) == 200
        async with client() as http:
            account_id = key_of(cluster, owner, "patient")
            await post(http, owner.url + path_of(account_id))
            waits = {"until": "balance_cents:1", "wait": "12"}
            read: httpx.Response = await http.get(other.url + path_of(account_id), params=waits)
        assert (read.status_code, read.headers["onefold-until"]) == (200, "unmet")
        assert _status(idle) == 200


def _status(connection: HTTPConnection) -> int:
    connection.request("GET", "/readyz")
    with connection.getresponse() as answer:
        answer.read()
        return answer.status
