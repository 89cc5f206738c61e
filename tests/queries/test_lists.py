"""Lists over all workers: complete, in order, in pages, and explicit about missing partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.dev.stack import Stack
from tests.queries.cluster import (
    PARTITIONS,
    client,
    fill,
    items,
    owned_by,
    owners,
    pages,
    path_of,
    post,
    shown,
    statuses,
)

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

BASE_CENTS = 50_000_000  # no account of this folder's other tests owes as much
ROWS = {f"listed-{i:02}": BASE_CENTS + (i * 7919) % 60 * 10 for i in range(60)}
OURS = {"balance_cents_min": BASE_CENTS, "balance_cents_max": BASE_CENTS + 1000}
EACH = range(PARTITIONS)


@pytest.fixture
async def listed(cluster: Stack) -> Stack:
    async with client() as http:
        first = await http.get(cluster.urls("accounts")[0] + path_of("listed-59"))
        if first.status_code == 404:
            await fill(http, cluster.urls("accounts")[0], ROWS)
    return cluster


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("id", sorted(ROWS.items())),
        ("balance_cents", sorted(ROWS.items(), key=lambda row: (row[1], row[0]))),
        ("-balance_cents", sorted(ROWS.items(), key=lambda row: (row[1], row[0]), reverse=True)),
    ],
)
@pytest.mark.parametrize("limit", [1, 7, 500])
async def test_every_worker_lists_every_row_once_and_in_order(
    listed: Stack, order: str, expected: list[tuple[str, int]], limit: int
) -> None:
    urls = listed.urls("accounts")
    async with client() as http:
        for url in urls[:1] if limit == 1 else urls:
            assert await items(http, url, order=order, limit=limit, **OURS) == expected


async def test_a_list_can_be_filtered_by_bounds_and_by_equality(listed: Stack) -> None:
    url = listed.urls("accounts")[1]
    low, high = BASE_CENTS + 100, BASE_CENTS + 200
    async with client() as http:
        between = await items(http, url, balance_cents_min=low, balance_cents_max=high)
        assert between == sorted((key, cents) for key, cents in ROWS.items() if low <= cents <= high)
        assert await items(http, url, phase="closed", **OURS) == []
        assert len(await items(http, url, phase="open", order="-balance_cents", **OURS)) == len(ROWS)


async def test_a_list_tells_what_all_workers_read_for_it(listed: Stack) -> None:
    url = listed.urls("accounts")[1]
    async with client() as http:
        query: dict[str, Any] = {"phase": "open", "order": "-balance_cents", "limit": 5, **OURS}
        page = (await http.get(f"{url}/accounts", params=query)).json()
        empty = (await http.get(f"{url}/accounts", params={"phase": "closed", **OURS})).json()
    scanned = [part["scanned"] for part in page["partitions"]]
    assert [each["by"] for each in scanned] == [["balance_cents", "phase"]] * PARTITIONS
    assert (len(page["items"]), sum(each["rows"] for each in scanned)) == (5, 5 * len(listed.workers))
    assert (empty["items"], empty["cursor"]) == ([], None)
    assert all("phase" in part["scanned"]["by"] for part in empty["partitions"])


async def test_a_list_reports_every_partition_as_fresh_with_its_position(listed: Stack) -> None:
    async with client() as http:
        for url in listed.urls("accounts"):
            page = (await http.get(f"{url}/accounts", params={"limit": 1})).json()
            assert [part["partition"] for part in page["partitions"]] == list(EACH)
            assert statuses(page, EACH) == {"fresh"}
            assert all(part["lag"] == 0 and part["position"] for part in page["partitions"])


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 501},
        {"order": "sequence"},
        {"cursor": "rubbish"},
        {"cursor": "WyJpZCIsIDFd"},
        {"max_lag": -1},
        {"partitions": "a"},
        {"colour": "red"},
        {"balance_cents_min": "x"},
    ],
)
async def test_a_query_that_makes_no_sense_is_422(listed: Stack, query: dict[str, Any]) -> None:
    async with client() as http:
        refused = await http.get(f"{listed.urls('accounts')[0]}/accounts", params=query)
        assert refused.status_code == 422, refused.text


async def test_a_cursor_is_refused_with_another_order(listed: Stack) -> None:
    async with client() as http:
        url = f"{listed.urls('accounts')[0]}/accounts"
        page = (await http.get(url, params={"order": "balance_cents", "limit": 1})).json()
        refused = await http.get(url, params={"order": "-balance_cents", "cursor": page["cursor"]})
        assert (refused.status_code, refused.json()["errors"][0]["kind"]) == (422, "value_error")


@pytest.mark.long  # in short, the keys of a lost owner are 503
async def test_a_killed_owners_rows_are_missing_or_503_and_pages_continue_after_the_rebalance(listed: Stack) -> None:
    url, victim = listed.workers[0].url, listed.workers[2]
    lost, kept = owned_by(listed, victim), [p for p, owner in owners(listed).items() if owner != victim.url]
    found: list[tuple[str, int]] = []
    async with client() as http:
        pager = pages(http, url, limit=10, complete="true", order="-balance_cents", **OURS)
        for _ in range(2):
            found += shown(await anext(pager))
        await asyncio.to_thread(victim.kill)
        partly = (await http.get(f"{url}/accounts", params=OURS)).json()
        refused = await http.get(f"{url}/accounts", params={**OURS, "complete": "true"})
        assert (statuses(partly, lost), statuses(partly, kept)) == ({"missing"}, {"fresh"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        async for page in pager:
            found += shown(page)
    assert found == sorted(ROWS.items(), key=lambda row: (row[1], row[0]), reverse=True)


@pytest.mark.long  # in short, pages of one worker, in tests/unit/http/test_scans
async def test_unchanged_rows_are_listed_once_while_other_rows_change(listed: Stack) -> None:
    """While pages are read, writers move rows through the order and a worker rejoins the group."""
    async with client() as http:
        url = listed.workers[0].url
        busy = [f"busy-{i}" for i in range(10)]
        await asyncio.gather(*(post(http, url + path_of(key)) for key in busy))
        stop = asyncio.Event()

        async def write(key: str) -> None:
            await post(http, f"{url}{path_of(key)}/charges", {"amount_cents": BASE_CENTS})
            while not stop.is_set():
                await post(http, f"{url}{path_of(key)}/charges", {"amount_cents": 97})

        writers = [asyncio.ensure_future(write(key)) for key in busy]
        await asyncio.to_thread(listed.workers[1].stop)
        await asyncio.to_thread(listed.workers[1].spawn)
        for _ in range(5):
            rows = await items(http, url, limit=4, complete="true", order="balance_cents", **OURS)
            still = [row for row in rows if row[0] in ROWS]
            assert sorted(still) == sorted(ROWS.items())
        stop.set()
        await asyncio.gather(*writers)
        await asyncio.to_thread(listed.workers[1].await_ready)
