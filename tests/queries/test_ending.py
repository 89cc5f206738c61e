"""Carts that end, on real workers: gone everywhere, and begun again by whoever owns them, at the next sequence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Column, Integer, String
from sqlalchemy.exc import OperationalError

from shared.dev.stack import Stack
from shared.dev.worker import faust_command
from shared.domain import Row
from shared.kafka.murmur2 import partition_of
from shared.sinks import Change, Delete, RowsOf, Sink, Upsert
from shared.sinks.database import Database
from shared.sinks.filling import Filling
from tests.carts.projections import Fresh
from tests.carts.topology import FRESH, TOPOLOGY
from tests.conftest import WORKER_SETTINGS
from tests.queries.cluster import DEADLINE_S, answered, client
from tests.queries.conftest import SHORT_SESSION_S
from tests.sinks.outside import found
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


def beside(cart: str) -> str:
    """Another of its partition."""
    return next(name for name in (f"beside-{cart}-{number}" for number in range(64)) if shares_partition(name, cart))


async def time_passes(http: httpx.AsyncClient, url: str, cart: str) -> None:
    for number in count():
        await send(http, url, cart, "items", f"tea-{number}")


async def test_what_has_expired_is_gone_from_lists_and_streams_and_its_key_begins_again(carts: Stack) -> None:
    """Ice lasts for a second, by the events of its partition: nothing but a later one ends it."""
    one, other = carts.workers
    later = beside("icy")
    async with client() as http, http.stream("GET", f"{other.url}/changes/fresh?key=icy") as stream:
        lines = stream.aiter_lines()
        await told(lines, "id: ")
        await send(http, one.url, "icy", "items", "ice")
        await told(lines, "event: changed")
        tasks = [
            asyncio.ensure_future(each) for each in (told(lines, "event: deleted"), time_passes(http, one.url, later))
        ]
        done, (passing,) = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
        done.pop().result()
        passing.cancel()
        assert (await answered(partial(http.get, f"{other.url}/fresh/icy"))).status_code == 404
        listed = (await answered(partial(http.get, f"{other.url}/fresh?complete=true"))).json()["items"]
        assert {each["cart_id"] for each in listed} >= {later}
        assert "icy" not in {each["cart_id"] for each in listed}
        assert await send(http, one.url, "icy", "items", "tea") == 2, "the aggregate has not ended"
        await told(lines, 'data: {"key":"icy","sequence":1')


def fresh_rows(cart: str, row: Row[Fresh] | None) -> list[Change]:
    return [Upsert({"cart": cart, "items": row.state.items}) if row else Delete({"cart": cart})]


async def test_what_has_expired_is_deleted_in_a_database_outside_and_its_key_begins_again_there(
    carts: Stack, tmp_path: Path
) -> None:
    columns = Column("cart", String(50), primary_key=True), Column("items", Integer, nullable=False)
    sink, url = Sink("fresh", columns, RowsOf(FRESH, Fresh), fresh_rows), f"sqlite:///{tmp_path / 'sinks.sqlite3'}"
    worker = carts.workers[0].url

    def there() -> object:
        with suppress(OperationalError):  # before it is begun
            return found(sink, url).get(("iced",))
        return None

    async def has(items: int | None) -> None:
        row = items and ("iced", items)
        await asyncio.to_thread(eventually, there, lambda found: found == row)

    async with client() as http:
        await send(http, worker, "iced", "items", "ice")
        with closing(Database(url)) as database:
            at_work = Filling(sink, TOPOLOGY, database, carts.bootstrap, "me", SHORT_SESSION_S)
            filling = asyncio.create_task(at_work.run(None))
            await has(1)
            passing = asyncio.create_task(time_passes(http, worker, beside("iced")))
            await has(None)
            passing.cancel()
            await send(http, worker, "iced", "items", "tea")
            await has(1)
            filling.cancel()
            await asyncio.gather(filling, passing, return_exceptions=True)


async def told(lines: AsyncIterator[str], begin: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async for line in lines:
            if line.startswith(begin):
                return
