"""Rows that end, over HTTP: gone from reads, lists and streams, and begun again; their past and their outcomes stay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import httpx
import pytest

from shared.engine.wiring import processors_of
from shared.http.api import create_api
from shared.service import Resource
from shared.testing.node import MemoryNode
from tests.carts.api import cart_view, routes
from tests.carts.domain import DECIDER
from tests.carts.service import SERVICE
from tests.carts.topology import CARTS, FRESH, TOPOLOGY, WAITING
from tests.unit.http.services import client_of
from tests.unit.http.test_changes import Api

pytestmark = pytest.mark.anyio


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode(TOPOLOGY, processors_of(SERVICE))


@pytest.fixture
async def http(node: MemoryNode) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_api(node, routes)) as http:
        yield http


async def filled(http: httpx.AsyncClient, items: Sequence[str], cart: str = "ann", **headers: str) -> httpx.Response:
    for item in items:
        answer = await http.post(f"/carts/{cart}/items", json={"item": item}, headers=headers)
        assert answer.status_code == 201, answer.text
    return answer


async def checked_out(http: httpx.AsyncClient, cart: str = "ann", **headers: str) -> httpx.Response:
    return await http.post(f"/carts/{cart}/check-out", headers=headers)


async def test_a_row_that_has_ended_is_in_no_read_and_no_list(http: httpx.AsyncClient) -> None:
    await filled(http, ["tea"])
    await filled(http, ["jam"], "bob")
    assert (await checked_out(http)).json()["sequence"] == 2
    for path in ("/carts", "/waiting"):
        assert (await http.get(f"{path}/ann")).status_code == 404
        assert [each["cart_id"] for each in (await http.get(path)).json()["items"]] == ["bob"]
    assert [each["cart_id"] for each in (await http.get("/waiting", params={"items_min": 1})).json()["items"]] == [
        "bob"
    ]


async def test_it_begins_again_at_the_next_sequence(http: httpx.AsyncClient) -> None:
    await filled(http, ["tea", "jam"])
    await checked_out(http)
    assert (await filled(http, ["ink"])).json()["sequence"] == 4
    assert (await http.get("/carts/ann")).json() == {"cart_id": "ann", "items": ["ink"], "sequence": 4}
    assert (await http.get("/waiting/ann")).json() == {"cart_id": "ann", "items": 1, "sequence": 1}


async def test_who_has_seen_nothing_may_begin_it_again_and_who_has_seen_more_may_not(http: httpx.AsyncClient) -> None:
    await filled(http, ["tea"])
    await checked_out(http)
    seen = await http.post("/carts/ann/items", json={"item": "ink"}, headers={"If-Match": '"1"'})
    assert (seen.status_code, seen.json()["code"]) == (412, "sequence.mismatch")
    assert (await filled(http, ["ink"], **{"If-Match": '"0"'})).json()["sequence"] == 3


async def test_its_history_stays_and_goes_on(http: httpx.AsyncClient) -> None:
    await filled(http, ["tea"])
    await checked_out(http)

    async def sequences() -> list[int]:
        return [each["sequence"] for each in (await http.get("/carts/ann/events")).json()["items"]]

    assert await sequences() == [1, 2]
    assert (await http.get("/carts/ann", params={"as_of": 1})).json()["items"] == ["tea"]
    assert (await http.get("/carts/ann", params={"as_of": 2})).status_code == 404
    beyond = await http.get("/carts/ann", params={"as_of": 3})
    assert (beyond.status_code, beyond.json()["detail"]) == (404, "'ann' has 2 events so far")
    await filled(http, ["ink"])
    assert await sequences() == [1, 2, 3]
    assert (await http.get("/carts/ann", params={"as_of": 1})).json()["items"] == ["tea"]
    assert (await http.get("/carts/ann", params={"as_of": 3})).json()["items"] == ["ink"]


async def test_what_became_of_its_commands_stays_known(http: httpx.AsyncClient) -> None:
    first = await filled(http, ["tea"], **{"Idempotency-Key": "first"})
    last = await checked_out(http, **{"Idempotency-Key": "last"})
    assert (await http.get(last.headers["Location"])).json() == {"command_id": "last", "sequence": 2}
    again = await filled(http, ["tea"], **{"Idempotency-Key": "first"})
    assert again.json() == first.json()
    assert (await http.get("/carts/ann")).status_code == 404


async def test_its_end_is_a_change_that_says_so(node: MemoryNode) -> None:
    api = Api(node, routes)
    stream = await api.follow(path="/changes/carts")
    async with client_of(api.app) as http:
        await filled(http, ["tea"])
        await checked_out(http)
        await filled(http, ["ink"])
    events = await stream.until(3)
    told = [(each["event"], each["data"]["sequence"]) for each in events]
    assert told == [("changed", 1), ("deleted", None), ("changed", 3)]
    assert events[1]["data"] == {"key": "ann", "sequence": None, "row": None}
    await api.close()


async def test_an_aggregate_whose_owner_is_in_a_field_can_not_end(node: MemoryNode) -> None:
    resource = Resource("/carts/{cart_id}", CARTS, cart_view, decider=DECIDER, owner="items")
    with pytest.raises(ValueError, match=r"^/carts/\{cart_id\}: rows of carts end, .*; fix: name cart_id, or leave "):
        create_api(node, resource)
    carts = replace(CARTS, ends=False)
    kept = replace(SERVICE, topology=replace(TOPOLOGY, tables=(carts, WAITING, FRESH)))
    create_api(MemoryNode(kept.topology, processors_of(kept)), replace(resource, table=carts))
