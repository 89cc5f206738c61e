"""Carts that end, on real workers: gone everywhere, and begun again by whoever owns them, at the next sequence."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from shared.dev.stack import Stack
from shared.dev.worker import faust_command
from tests.carts.topology import TOPOLOGY
from tests.conftest import WORKER_SETTINGS
from tests.queries.cluster import DEADLINE_S, answered, client
from tests.queries.conftest import SHORT_SESSION_S
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.anyio]

NAMES = [f"cart-{number}" for number in range(8)]


@pytest.fixture
def carts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = WORKER_SETTINGS.model_copy(update={"session_timeout_s": SHORT_SESSION_S})
    command = partial(faust_command, package="tests")
    root = tmp_path_factory.mktemp("carts")
    with Stack(root, {"carts": 2}, settings=settings, topologies=[TOPOLOGY], command=command) as stack:
        yield stack


async def send(http: httpx.AsyncClient, url: str, cart: str, command: str) -> int:
    """The sequence after it."""
    body = {"item": "tea"} if command == "items" else None
    headers = {"Idempotency-Key": f"{cart}-{command}-{url}"}
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
