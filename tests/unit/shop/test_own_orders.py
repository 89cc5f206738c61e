"""A caller's orders are those that name it as their customer: it sees and gives no others, over any route."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.orders.api import orders
from services.orders.domain.decide import DECIDER
from services.orders.topology import COMMANDS, EVENTS, ORDERS, TOPOLOGY
from shared.dev.issuer import DevIssuer
from shared.domain.row import Row
from shared.engine.processors import AggregateProcessor
from shared.http import lists, scans
from shared.http.api import create_api
from shared.testing.node import MemoryNode
from shared.topology.topics import Table
from tests.unit.http.services import client_of, issuer_settings
from tests.unit.http.test_changes import Api

pytestmark = pytest.mark.anyio

NDJSON = {"Content-Type": "application/x-ndjson"}
RIGHTS = ["orders:read", "orders:write"]


@pytest.fixture
def issuer(tmp_path: Path) -> DevIssuer:
    return DevIssuer(tmp_path)


@pytest.fixture
def node(issuer: DevIssuer) -> MemoryNode:
    settings = issuer_settings(issuer.key_set.parent, "orders")
    without_timers = replace(TOPOLOGY, topics=(COMMANDS, EVENTS), tables=(ORDERS,))
    return MemoryNode(without_timers, [AggregateProcessor(DECIDER, table=ORDERS, events=EVENTS)], settings)


@pytest.fixture
async def http(node: MemoryNode, issuer: DevIssuer) -> AsyncIterator[httpx.AsyncClient]:
    """An order of ann and one of bob are placed, by themselves."""
    async with client_of(create_api(node, orders)) as client:
        for customer in ("ann", "bob"):
            placed = await client.post(
                f"/orders/{customer}-1", json=order_of(customer), headers=bearer(issuer, customer)
            )
            assert placed.status_code == 201, placed.text
        yield client


def bearer(issuer: DevIssuer, customer: str, *more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {issuer.token('orders', [*RIGHTS, *more], customer)}"}


def order_of(customer: str) -> dict[str, Any]:
    lines = [{"sku": "mug", "quantity": 1, "amount_cents": 500}]
    return {"customer_id": customer, "lines": lines, "placed_at": "2026-11-01T10:00:00Z"}


async def test_anothers_order_answers_as_one_that_does_not_exist(http: httpx.AsyncClient, issuer: DevIssuer) -> None:
    """Also one that has no customer yet, since its placing was refused."""
    bob, ann = bearer(issuer, "bob"), bearer(issuer, "ann")
    empty = {**order_of("ann"), "lines": []}
    assert (await http.post("/orders/empty", json=empty, headers=ann)).status_code == 409
    for path in ("", "?until=phase:reserving&wait=0.01", "?wait=0.01"):
        assert (await http.get(f"/orders/ann-1{path}", headers=ann)).status_code == 200
        for order in ("ann-1", "none", "empty"):
            answer = await http.get(f"/orders/{order}{path}", headers=bob)
            assert (answer.status_code, answer.json()["detail"]) == (404, f"nothing has the id '{order}'")
            assert answer.headers.get("onefold-until", "unmet") == "unmet"
    for order in ("ann-1", "none", "empty"):
        answer = await http.post(f"/orders/{order}/cancellation", headers=bob)
        assert (answer.status_code, answer.json()["detail"]) == (404, f"nothing has the id '{order}'")
    assert (await http.get("/orders/ann-1", headers=ann)).json()["phase"] == "reserving"


async def test_nobody_orders_in_anothers_name_or_under_anothers_id(http: httpx.AsyncClient, issuer: DevIssuer) -> None:
    bob = bearer(issuer, "bob")
    for order, customer in (("new", "ann"), ("ann-1", "ann"), ("ann-1", "bob")):
        answer = await http.post(f"/orders/{order}", json=order_of(customer), headers=bob)
        assert (answer.status_code, answer.json()["code"]) == (403, "owner.other")
    assert (await http.get("/orders/new", headers=bearer(issuer, "clerk", "orders:any"))).status_code == 404


async def test_many_commands_at_once_are_the_callers_own_like_one(http: httpx.AsyncClient, issuer: DevIssuer) -> None:
    sent: list[dict[str, Any]] = [
        {"type": "order.place", "id": "bob-2", "body": order_of("bob")},
        {"type": "order.place", "id": "new", "body": order_of("ann")},
        {"type": "order.place", "id": "ann-1", "body": order_of("bob")},
        {"type": "order.cancel", "id": "ann-1"},
        {"type": "order.cancel", "id": "bob-1"},
    ]
    content = b"\n".join(json.dumps(each).encode() for each in sent)
    answer = await http.post("/orders/commands", content=content, headers=bearer(issuer, "bob") | NDJSON)
    assert [json.loads(each)["status"] for each in answer.text.splitlines()] == [201, 403, 403, 404, 201]


async def test_a_line_finds_the_callers_row_that_an_earlier_one_has_opened(
    http: httpx.AsyncClient, issuer: DevIssuer
) -> None:
    sent: list[dict[str, Any]] = [
        {"type": "order.place", "id": "bob-2", "body": order_of("bob")},
        {"type": "order.place", "id": "bob-3", "body": order_of("bob")},
        {"type": "order.cancel", "id": "bob-2", "if_match": 1},
        {"type": "order.cancel", "id": "bob-3", "if_match": 1},
    ]
    content = b"\n".join(json.dumps(each).encode() for each in sent)
    answer = await http.post("/orders/commands", content=content, headers=bearer(issuer, "bob") | NDJSON)
    assert [json.loads(each)["status"] for each in answer.text.splitlines()] == [201] * 4


async def test_a_list_has_the_callers_orders_whatever_it_asks_for(http: httpx.AsyncClient, issuer: DevIssuer) -> None:
    async def listed(headers: dict[str, str], **query: str) -> list[str]:
        answer = await http.get("/orders", params=query, headers=headers)
        assert answer.status_code == 200, answer.text
        return [item["order_id"] for item in answer.json()["items"]]

    bob, nobody = bearer(issuer, "bob"), bearer(issuer, "zoe")
    for order in ("id", "phase", "customer_id"):
        assert await listed(bob, order=order) == ["bob-1"]
        assert await listed(bob, order=order, phase="reserving") == ["bob-1"]
        assert await listed(bob, order=order, customer_id="ann") == []
        assert await listed(nobody, order=order) == []
        assert sorted(await listed(bearer(issuer, "clerk", "orders:any"), order=order)) == ["ann-1", "bob-1"]


@pytest.mark.parametrize("order", ["id", "phase", "customer_id"])
async def test_a_list_reads_only_the_callers_orders_and_does_not_tell_how_many_others_there_are(
    http: httpx.AsyncClient, issuer: DevIssuer, node: MemoryNode, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    looked_at, read = list[str](), node.read

    def noted(table: Table, partition: int, key: bytes) -> Row[Any] | None:
        looked_at.append(key.decode())
        return read(table, partition, key)

    monkeypatch.setattr(node, "read", noted)
    query = {"order": order, "phase": "reserving"}
    own = (await http.get("/orders", params=query, headers=bearer(issuer, "bob"))).json()
    assert looked_at == ["bob-1"]
    every = (await http.get("/orders", params=query, headers=bearer(issuer, "clerk", "orders:any"))).json()
    assert {part["scanned"] for part in own["partitions"]} == {None}
    assert sum(part["scanned"]["rows"] for part in every["partitions"]) == 2


@pytest.mark.parametrize("query", [{"order": "phase"}, {"phase": "reserving"}], ids=str)
async def test_an_index_of_several_fields_confines_a_list_to_the_callers_orders_like_one_of_its_own(
    issuer: DevIssuer, monkeypatch: pytest.MonkeyPatch, query: dict[str, str]
) -> None:
    table = replace(ORDERS, indexes=("phase", ("customer_id", "phase")))
    topology = replace(TOPOLOGY, topics=(COMMANDS, EVENTS), tables=(table,))
    aggregate = AggregateProcessor(DECIDER, table=table, events=EVENTS)
    node = MemoryNode(topology, [aggregate], issuer_settings(issuer.key_set.parent, "orders"))
    looked_at, read = list[str](), node.read

    def noted(table: Table, partition: int, key: bytes) -> Row[Any] | None:
        looked_at.append(key.decode())
        return read(table, partition, key)

    async with client_of(create_api(node, replace(orders, table=table, filters=("phase",), sorts=("phase",)))) as http:
        for name in ("ann", "bob", "zoe"):
            placed = await http.post(f"/orders/{name}-1", json=order_of(name), headers=bearer(issuer, name))
            assert placed.status_code == 201, placed.text
        monkeypatch.setattr(node, "read", noted)
        answer = await http.get("/orders", params=query, headers=bearer(issuer, "bob"))
    assert [item["order_id"] for item in answer.json()["items"]] == looked_at == ["bob-1"]


async def test_a_cursor_does_not_tell_the_caller_of_anothers_order(
    http: httpx.AsyncClient, issuer: DevIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a page ended early at one; and it is good for that order alone."""
    monkeypatch.setattr(lists, "PATIENCE_S", 0)
    monkeypatch.setattr(scans, "MOST", 1)
    bob, query, pages = bearer(issuer, "bob"), {"order": "phase"}, list[dict[str, Any]]()
    while not pages or "cursor" in query:
        answer = await http.get("/orders", params=query, headers=bob)
        assert answer.status_code == 200, answer.text
        pages.append(answer.json())
        query = {"order": "phase"} | ({"cursor": pages[-1]["cursor"]} if pages[-1]["cursor"] else {})
    cursors = [page["cursor"] for page in pages[:-1]]
    assert cursors
    assert not any(part in base64.urlsafe_b64decode(each) for each in cursors for part in (b"ann", b"phase"))
    assert [item["order_id"] for page in pages for item in page["items"]] == ["bob-1"]
    for refused in ({"order": "id", "cursor": cursors[0]}, {"order": "phase", "cursor": cursors[0][:-8] + "AAAAAAA="}):
        answer = await http.get("/orders", params=refused, headers=bob)
        assert (answer.status_code, answer.json()["detail"][:13]) == (422, "query.cursor:")


@pytest.mark.parametrize("order", ["id", "phase"])
async def test_a_cursor_comes_only_if_more_of_the_callers_orders_follow(
    http: httpx.AsyncClient, issuer: DevIssuer, order: str
) -> None:
    ann = bearer(issuer, "ann")
    page = (await http.get("/orders", params={"order": order, "limit": 1}, headers=ann)).json()
    assert ([item["order_id"] for item in page["items"]], page["cursor"]) == (["ann-1"], None)
    assert (await http.post("/orders/zoe", json=order_of("ann"), headers=ann)).status_code == 201
    for expected, is_last in (("ann-1", False), ("zoe", True)):
        query: dict[str, Any] = {"order": order, "limit": 1} | ({"cursor": page["cursor"]} if page["cursor"] else {})
        page = (await http.get("/orders", params=query, headers=ann)).json()
        assert ([item["order_id"] for item in page["items"]], page["cursor"] is None) == ([expected], is_last)


async def test_a_caller_cannot_make_a_cursor_at_anothers_order(http: httpx.AsyncClient, issuer: DevIssuer) -> None:
    plain = base64.urlsafe_b64encode(b"id\x00\x00a").decode()
    refused = await http.get("/orders", params={"cursor": plain}, headers=bearer(issuer, "bob"))
    assert (refused.status_code, refused.json()["detail"]) == (422, "query.cursor: not a cursor of a list")
    taken = await http.get("/orders", params={"cursor": plain}, headers=bearer(issuer, "clerk", "orders:any"))
    assert [item["order_id"] for item in taken.json()["items"]] == ["ann-1", "bob-1"]


async def test_an_outcome_is_its_callers_or_its_orders_owners(http: httpx.AsyncClient, issuer: DevIssuer) -> None:
    ann, bob, clerk = bearer(issuer, "ann"), bearer(issuer, "bob"), bearer(issuer, "clerk", "orders:any")
    by_clerk = await http.post("/orders/ann-1/cancellation", headers=clerk | {"Idempotency-Key": "k"})
    assert by_clerk.status_code == 201, by_clerk.text
    refused = await http.post(
        "/orders/e", json={**order_of("bob"), "lines": []}, headers=bob | {"Idempotency-Key": "r"}
    )
    assert refused.status_code == 409
    for location, expected in (
        (by_clerk.headers["location"], (404, 404, 201)),
        ("/orders/e/commands/r", (404, 409, 404)),
    ):
        answers = [await http.get(location, headers=headers) for headers in (ann, bob, clerk)]
        assert tuple(answer.status_code for answer in answers) == expected


async def test_a_token_that_names_no_owner_owns_nothing(
    http: httpx.AsyncClient, issuer: DevIssuer, node: MemoryNode
) -> None:
    settings = node.settings.model_copy(update={"auth_owner_claim": "customer"})
    node.settings = settings
    async with client_of(create_api(node, orders)) as other:
        headers = bearer(issuer, "ann")
        assert (await other.get("/orders/ann-1", headers=headers)).status_code == 404
        assert (await other.get("/orders", headers=headers)).json()["items"] == []
        assert (await other.post("/orders/x", json=order_of("ann"), headers=headers)).status_code == 403


async def test_a_stream_has_the_callers_orders(node: MemoryNode, issuer: DevIssuer) -> None:
    api = Api(node, orders)
    streams = {
        name: await api.follow(path="/changes/orders", authorization=bearer(issuer, name, *more)["Authorization"])
        for name, more in (("ann", ()), ("bob", ()), ("clerk", ("orders:any",)))
    }
    async with client_of(api.app) as http:
        for customer in ("bob", "ann"):
            await http.post(f"/orders/{customer}-2", json=order_of(customer), headers=bearer(issuer, customer))
    told = {name: [event["data"]["key"] for event in await stream.until(1)] for name, stream in streams.items()}
    assert (told["ann"], told["bob"]) == (["ann-2"], ["bob-2"])
    assert [event["data"]["key"] for event in await streams["clerk"].until(2)] == ["bob-2", "ann-2"]
    await api.close()
