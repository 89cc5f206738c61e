"""The client against three workers, one of which is killed midway."""

from __future__ import annotations

import asyncio

import pytest

from shared.dev.stack import Stack
from shared.http.client import AsyncClient, path_of
from tests.accounts.api import AccountView
from tests.accounts.domain.commands import Charge
from tests.queries.cluster import key_of

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

CHARGES = 40


async def test_every_command_takes_effect_once_and_the_next_read_shows_it(cluster: Stack) -> None:
    """Each client starts at a different worker, and reads after each write."""
    urls = cluster.urls("accounts")
    keys = [key_of(cluster, worker, "shopper") for worker in cluster.workers]
    halfway = asyncio.Event()

    async def shop(number: int) -> None:
        path = path_of("/accounts", keys[number])
        async with AsyncClient([*urls[number:], *urls[:number]], deadline_s=90) as ours:
            await ours.send(path)
            for charge in range(1, CHARGES + 1):
                decided = await ours.send(f"{path}/charges", Charge(amount_cents=1))
                read = await ours.read(path, AccountView)
                assert (decided.sequence, read.body.balance_cents) == (1 + charge, charge)
                if (number, charge) == (0, CHARGES // 2):
                    halfway.set()

    shopping = asyncio.gather(*map(shop, range(3)))
    await asyncio.wait_for(halfway.wait(), 60)
    await asyncio.to_thread(cluster.workers[0].kill)
    assert not shopping.done()
    await shopping
