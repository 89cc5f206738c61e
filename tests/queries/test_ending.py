"""Carts that end, on real workers: gone everywhere, and begun again by whoever owns them, at the next sequence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import count

import httpx
import pytest

from shared.dev.stack import Stack
from shared.dev.worker import faust_command
from shared.kafka.murmur2 import partition_of
from tests.carts.topology import TOPOLOGY
from tests.conftest import WORKER_SETTINGS
from tests.queries.cluster import DEADLINE_S, answered, client
from tests.queries.conftest import SHORT_SESSION_S
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

NAMES = [f"cart-{number}" for number in range(8)]


@pytest.fixture(scope="module")
def carts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = WORKER_SETTINGS.model_copy(update={"session_timeout_s": SHORT_SESSION_S})
    command = partial(faust_command, package="tests")
    root = tmp_path_factory.mktemp("carts")
    with Stack(root, {"carts": 2}, settings=settings, topologies=[TOPOLOGY], command=command) as stack:
        yield stack


def shares_partition(cart: str, other: str) -> bool:
    return partition_of(cart.encode(), TOPOLOGY.partitions) == partition_of(other.encode(), TOPOLOGY.partitions)


async def send(http: httpx.AsyncClient, url: str, cart: str, command: str, item: str = "tea") -> int:
    """The sequence after it."""
    body = {"item": item} if command == "items" else None
    headers = {"Idempotency-Key": f"{cart}-{command}-{url}-{item}"}
    answer = await answered(partial(http.post, f"{url}/carts/{cart}/{command}", json=body, headers=headers))
    assert answer.status_code == 201, answer.text
    sequence: int = answer.json()["sequence"]
    return sequence


async def test_carts_that_have_ended_are_gone_everywhere_and_begin_again_after_a_kill(carts: Stack) -> None:
    one, other = carts.workers
    async with client() as http:
        for cart in NAMES:
            assert await send(http, one.url, cart, "items") == 1
            assert await send(http, one.url, cart, "check-out") == 2
        assert await send(http, one.url, "kept", "items") == 1
        for url in (one.url, other.url):
            for cart in NAMES:
                assert (await answered(partial(http.get, f"{url}/carts/{cart}"))).status_code == 404
                past = (await answered(partial(http.get, f"{url}/carts/{cart}/events"))).json()["items"]
                assert [each["sequence"] for each in past] == [1, 2]
            listed = await answered(partial(http.get, f"{url}/carts?complete=true"))
            assert [each["cart_id"] for each in listed.json()["items"]] == ["kept"]
        one.kill()
        for cart in NAMES:
            assert await send(http, other.url, cart, "items") == 3
        one.start()
        eventually(one.is_ready, deadline_s=DEADLINE_S)
        for cart in NAMES:
            shown = (await answered(partial(http.get, f"{one.url}/carts/{cart}"))).json()
            assert shown == {"cart_id": cart, "items": ["tea"], "sequence": 3}


async def test_what_has_expired_is_gone_from_lists_and_streams_and_its_key_begins_again(carts: Stack) -> None:
    """Ice lasts for a second, by the events of its partition: nothing but a later one ends it."""
    one, other = carts.workers
    later = next(name for name in (f"late-{number}" for number in range(64)) if shares_partition(name, "icy"))

    async def time_passes(http: httpx.AsyncClient) -> None:
        for number in count():
            await send(http, one.url, later, "items", f"tea-{number}")

    async with client() as http, http.stream("GET", f"{other.url}/changes/fresh?key=icy") as stream:
        lines = stream.aiter_lines()
        await told(lines, "id: ")
        await send(http, one.url, "icy", "items", "ice")
        await told(lines, "event: changed")
        tasks = [asyncio.ensure_future(each) for each in (told(lines, "event: deleted"), time_passes(http))]
        done, (passing,) = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
        done.pop().result()
        passing.cancel()
        assert (await answered(partial(http.get, f"{other.url}/fresh/icy"))).status_code == 404
        listed = (await answered(partial(http.get, f"{other.url}/fresh?complete=true"))).json()["items"]
        assert {each["cart_id"] for each in listed} >= {later}
        assert "icy" not in {each["cart_id"] for each in listed}
        assert await send(http, one.url, "icy", "items", "tea") == 2, "the aggregate has not ended"
        await told(lines, 'data: {"key":"icy","sequence":1')


async def told(lines: AsyncIterator[str], begin: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async for line in lines:
            if line.startswith(begin):
                return
