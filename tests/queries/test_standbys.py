"""With a standby, reads that allow a lag go on while the owner is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import httpx
import pytest

from shared.dev.stack import Stack
from shared.dev.worker import Worker
from tests.conftest import SESSION_S, accounts_stack
from tests.queries.cluster import (
    DEADLINE_S,
    as_peer,
    client,
    fill,
    key_of,
    owned_by,
    owners,
    path_of,
    post,
    statuses,
)
from tests.queries.cluster import eventually as http_eventually
from tests.waiting import Deadline, eventually

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

ENOUGH = "1000"
BEFORE_TAKE_OVER_S = SESSION_S / 2  # a standby may be unsure of its lag for a moment; no new owner answers yet


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Three workers, each partition on two of them."""
    with accounts_stack(tmp_path_factory.mktemp("warm"), workers=3, standbys=1) as stack:
        owners(stack)
        yield stack


async def test_reads_within_a_lag_go_on_when_the_owner_is_killed(warm: Stack) -> None:
    """Through both other workers, of which only one has the standby; lists, too."""
    victim, others = warm.workers[0], warm.workers[1:]
    lost = owned_by(warm, victim)
    balances = {key_of(warm, victim, f"warm-{i}"): 100 + i for i in range(6)}
    async with client() as http:
        await fill(http, victim.url, balances)
        await _caught_up(http, warm, balances)
        await asyncio.to_thread(victim.kill)
        for url in [worker.url for worker in others] * 3:
            for account_id, cents in balances.items():
                asked = partial(http.get, url + path_of(account_id), params={"max_lag": ENOUGH})
                read = await http_eventually(asked, lambda a: a.status_code == 200, BEFORE_TAKE_OVER_S)
                assert read.json()["balance_cents"] == cents
                assert 0 <= int(read.headers["onefold-lag"]) <= int(ENOUGH)
            asked = partial(http.get, f"{url}/accounts", params={"limit": 500, "max_lag": ENOUGH})
            listed = await http_eventually(
                asked, lambda a: statuses(a.json(), lost) <= {"stale", "fresh"}, BEFORE_TAKE_OVER_S
            )
            partly = listed.json()
            assert balances.items() <= {item["account_id"]: item["balance_cents"] for item in partly["items"]}.items()
        owners(warm)
        for url in [worker.url for worker in others]:
            for account_id, cents in balances.items():
                read = await http.get(url + path_of(account_id), params={"max_lag": ENOUGH})
                assert (read.status_code, read.json()["balance_cents"]) == (200, cents)


async def test_a_lagging_standby_never_answers_for_a_position(warm: Stack) -> None:
    """A standby does not know its position in the source, so only the owner can promise one."""
    async with client() as http:
        urls = sorted(set(owners(warm).values()))
        account_id = key_of(warm, warm.workers[1], "sure")
        await post(http, urls[0] + path_of(account_id))
        for turn in range(1, 11):
            sent = await post(http, f"{urls[turn % 2]}{path_of(account_id)}/charges", {"amount_cents": 1})
            wishes = {"min_position": sent.headers["onefold-position"], "max_lag": ENOUGH, "wait": "10"}
            read = await http.get(urls[(turn + 1) % 2] + path_of(account_id), params=wishes)
            assert (read.status_code, read.json()["balance_cents"]) == (200, turn)


@pytest.mark.long  # in short, that reads go on
async def test_a_promoted_standby_restores_next_to_nothing(warm: Stack) -> None:
    """With two workers, each has a copy of what the other one owns."""
    heir, victim, third = warm.workers
    await asyncio.to_thread(third.stop)
    if not heir.running:
        await asyncio.to_thread(heir.start)
    owners(warm)
    async with client() as http:
        await fill(http, victim.url, {f"promoted-{i}": 1 for i in range(200)})
    await asyncio.to_thread(eventually, lambda: _cluster(victim), _is_warm)
    written = sum(each["position"] for each in _cluster(victim)["replicas"] if each["role"] == "active")
    before = len(_took_over(heir))
    await asyncio.to_thread(victim.kill)
    assert set(owners(warm).values()) == {heir.url}
    # written after the group has decided
    lines = await asyncio.to_thread(eventually, lambda: _took_over(heir)[before:])
    # a take-over itself writes a record, which it aborts, and so a marker to each of its changelogs
    to_restore = [line["to_restore"] - 2 * line["tables"] for line in lines]
    assert sum(to_restore) * 10 < written


def _cluster(worker: Worker) -> dict[str, Any]:
    return dict(httpx.get(f"{worker.url}/cluster", timeout=DEADLINE_S).json())


def _is_warm(cluster: Mapping[str, Any]) -> bool:
    """Whether each partition has a standby that is behind by nothing."""
    partitions = [partition for table in cluster["tables"].values() for partition in table]
    return all([each["lag_records"] for each in partition["standbys"]] == [0] for partition in partitions)


def _took_over(worker: Worker) -> list[dict[str, Any]]:
    lines = worker.log.read_text().splitlines()
    return [json.loads(line) for line in lines if '"event": "took over"' in line]


async def _caught_up(http: httpx.AsyncClient, stack: Stack, balances: dict[str, int]) -> None:
    """Returns when, for each row, one worker besides the owner has it."""
    for account_id, cents in balances.items():
        copies, asked = 0, f"{path_of(account_id)}?max_lag={ENOUGH}"
        deadline = Deadline(DEADLINE_S)
        while copies < 2:
            deadline.check(f"no standby has {account_id}")
            reads = [await http.get(url + asked, headers=as_peer(url + asked)) for url in stack.urls("accounts")]
            copies = sum(read.status_code == 200 and read.json()["balance_cents"] == cents for read in reads)
            await asyncio.sleep(0.1)
