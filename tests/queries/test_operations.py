"""What operators see of three workers."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from shared.dev.stack import Stack
from tests.queries.cluster import PARTITIONS, client, eventually, fill, key_of, owned_by, owners, path_of

pytestmark = [pytest.mark.broker, pytest.mark.anyio]


async def test_every_worker_shows_the_whole_cluster(cluster: Stack) -> None:
    expected = owners(cluster)
    async with client() as http:
        for url in cluster.urls("accounts"):
            answer = await eventually(lambda url=url: http.get(f"{url}/cluster"), shows_every_source)  # type: ignore[misc]
            found = answer.json()
            assert {member["url"]: member["ready"] for member in found["members"]} == dict.fromkeys(
                cluster.urls("accounts"), True
            )
            assert {part["partition"]: part["active"] for part in found["tables"]["accounts"]} == expected
            assert [part["restored"] for part in found["tables"]["accounts"]] == [True] * PARTITIONS
            topic = found["topics"]["accounts.commands.v1"]
            assert {part["partition"]: part["active"] for part in topic} == expected


def shows_every_source(answer: httpx.Response) -> bool:
    """False of a worker that got its own partitions back: it is ready before it has sources."""
    return len(answer.json()["topics"].get("accounts.commands.v1", ())) == PARTITIONS


async def test_lags_are_zero_once_everything_is_handled(cluster: Stack) -> None:
    """Also after transaction markers, which no consumer receives."""
    async with client() as http:
        await fill(http, cluster.urls("accounts")[0], {f"lag-{i}": 1 for i in range(30)})
        for url in cluster.urls("accounts"):
            shown = await eventually(
                lambda url=url: http.get(f"{url}/cluster"),  # type: ignore[misc]
                lambda a: not any(part["lag_records"] for topic in a.json()["topics"].values() for part in topic),
            )
            assert {"accounts.commands.v1", "accounts.events.v1"} <= shown.json()["topics"].keys()
            await eventually(lambda url=url: http.get(f"{url}/metrics"), shows_no_lag)  # type: ignore[misc]


def shows_no_lag(answer: httpx.Response) -> bool:
    lags = [line for line in answer.text.splitlines() if line.startswith("onefold_source_lag_records{")]
    return bool(lags) and all(line.endswith(" 0.0") for line in lags)


async def test_readiness_of_a_partition_follows_its_owner(cluster: Stack) -> None:
    """On any worker: a lost partition is not ready until its next owner is; the others stay ready."""
    victim, other = cluster.workers[0], cluster.workers[1]
    lost, kept = owned_by(cluster, victim)[0], owned_by(cluster, other)[0]
    async with client() as http:
        assert (await http.get(f"{other.url}/readyz", params={"partition": lost})).status_code == 200
        key = key_of(cluster, victim, "ready")
        await asyncio.to_thread(victim.kill)
        assert (await http.get(f"{other.url}/readyz", params={"partition": lost})).status_code == 503
        assert (await http.get(f"{other.url}/readyz", params={"key": key})).status_code == 503
        assert (await http.get(f"{other.url}/readyz", params={"partition": kept})).status_code == 200
        silent = (await http.get(f"{other.url}/cluster")).json()
        assert [m["reachable"] for m in silent["members"] if m["url"] == victim.url] == [False]
        await eventually(
            lambda: http.get(f"{other.url}/readyz", params={"partition": lost}), lambda a: a.status_code == 200
        )
        assert (await http.get(other.url + path_of(key))).status_code == 404
