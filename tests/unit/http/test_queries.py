"""A row read by its key: what its ETag promises, and which parameters are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from shared.domain.row import Row
from shared.domain.times import Instant
from shared.http.api import create_api
from shared.http.lists import ListQuery, Lists
from shared.http.node import Node
from shared.http.paths import PathId
from shared.http.peers import Peers
from shared.http.queries import Queries, ReadingQuery
from shared.testing.node import MemoryNode
from tests.accounts.topology import ACCOUNTS
from tests.unit.http.services import client_of

pytestmark = pytest.mark.anyio


class Scored(BaseModel):
    account_id: str
    as_of: str


async def scored(node: MemoryNode, as_of: str, etag: str = "", query: str = "") -> httpx.Response:
    """The account `ann`, as shown by a service whose view also depends on the day."""

    def routes(node: Node, peers: Peers) -> list[APIRouter]:
        router = APIRouter()
        queries = Queries(node, peers, ACCOUNTS, lambda key, _row: Scored(account_id=key, as_of=as_of))

        @router.get("/scores/{account_id}")
        async def get_score(request: Request, account_id: PathId, reading: ReadingQuery) -> Response:
            return await queries.by_id(request, account_id, reading)

        return [router]

    async with client_of(create_api(node, routes)) as http:
        return await http.get(f"/scores/ann{query}", headers={"If-None-Match": etag})


async def test_an_unchanged_view_is_304_and_a_changed_view_of_the_same_row_is_not(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    """The row is the same: but a view may depend on the day, a release may extend it, and a row may be recomputed."""
    assert (await http.post("/accounts/ann")).status_code == 201
    before = await scored(node, "monday")
    same = await scored(node, "monday", before.headers["etag"])
    other = await scored(node, "tuesday", before.headers["etag"])
    assert (same.status_code, same.headers["etag"]) == (304, before.headers["etag"])
    assert (other.status_code, other.json()) == (200, {"account_id": "ann", "as_of": "tuesday"})
    assert other.headers["etag"] != before.headers["etag"]


@pytest.mark.parametrize("wish", ["min_positon=accounts.commands.v1/2@1", "as_of=1"])
async def test_a_parameter_that_a_row_cannot_meet_is_refused(
    http: httpx.AsyncClient, node: MemoryNode, wish: str
) -> None:
    """A misspelt parameter, or one of another table, must not be ignored."""
    assert (await http.post("/accounts/ann")).status_code == 201
    refused = await scored(node, "monday", query=f"?{wish}")
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["field"]) == (422, f"query.{wish.partition('=')[0]}")


@pytest.mark.parametrize("path", ["/accounts/ann", "/accounts/ann/events"])
async def test_of_joined_positions_the_highest_counts(http: httpx.AsyncClient, path: str) -> None:
    """Whoever has two answers joins their positions, in any order."""
    reached = (await http.post("/accounts/ann")).headers["onefold-position"].partition(",")[0]
    ahead = f"{reached.partition('@')[0]}@99"
    for joined in (f"{ahead},{reached}", f"{reached},{ahead}"):
        answer = await http.get(path, params={"min_position": joined})
        assert (answer.status_code, "not yet at 99" in answer.text) == (503, True)
    assert (await http.get(path, params={"min_position": f"{reached},{reached}"})).status_code == 200


@pytest.mark.parametrize("path", ["/accounts/ann", "/accounts/ann/events"])
async def test_a_position_in_two_parameters_is_refused(http: httpx.AsyncClient, path: str) -> None:
    """Taking one of them would answer older than the other."""
    reached = (await http.post("/accounts/ann")).headers["onefold-position"]
    refused = await http.get(path, params={"min_position": [reached, reached]})
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["field"]) == (422, "query.min_position")


@pytest.mark.parametrize(
    ("named", "status"), [("W/{}", 304), ('"x", {}', 304), ('"x",W/{} , "y"', 304), ("*", 304), ('W/"x"', 200)]
)
async def test_an_etag_is_recognised_in_every_form(
    http: httpx.AsyncClient, node: MemoryNode, named: str, status: int
) -> None:
    """A proxy that compresses answers weakens their ETags."""
    assert (await http.post("/accounts/ann")).status_code == 201
    etag = (await scored(node, "monday")).headers["etag"]
    assert (await scored(node, "monday", named.format(etag))).status_code == status
    assert (await http.get("/accounts/bob", headers={"If-None-Match": "*"})).status_code == 404


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    account_id: str
    seen_at: Instant
    mean_cents: float


def camel(account_id: str, _row: Row[object]) -> Camel:
    return Camel(account_id=account_id, seen_at=datetime(2026, 5, 1, tzinfo=UTC), mean_cents=float("nan"))


def camels(node: Node, peers: Peers) -> list[APIRouter]:
    router = APIRouter()
    queries, lists = Queries(node, peers, ACCOUNTS, camel), Lists(node, peers, ACCOUNTS, camel, ListQuery)

    @router.get("/camels", response_model=None)
    async def list_camels(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
        return await lists.page(request, query)

    @router.get("/camels/{account_id}", response_model=Camel)
    async def get_camel(request: Request, account_id: PathId, reading: ReadingQuery) -> Response:
        return await queries.by_id(request, account_id, reading)

    return [router]


async def test_a_view_has_the_names_of_its_schema_and_is_the_same_in_a_list(
    http: httpx.AsyncClient, node: MemoryNode
) -> None:
    assert (await http.post("/accounts/ann")).status_code == 201
    async with client_of(create_api(node, camels)) as asked:
        shown, listed = await asked.get("/camels/ann"), await asked.get("/camels")
        schema = (await asked.get("/openapi.json")).json()["components"]["schemas"]["Camel"]
    assert shown.json() == {"accountId": "ann", "seenAt": "2026-05-01T00:00:00Z", "meanCents": None}
    assert shown.json().keys() == schema["properties"].keys()
    assert (listed.status_code, listed.json()["items"]) == (200, [shown.json()])


@pytest.mark.parametrize(
    ("until", "met"),
    [
        ("accountId:ann", "met"),
        ("meanCents:null", "met"),
        ("seenAt:2026-05-01T00:00:00Z", "met"),
        ("seenAt:2026-05-01T00:00:01Z", "unmet"),
        ("account_id:ann", "unmet"),
    ],
)
async def test_any_field_of_a_view_can_be_waited_for(
    http: httpx.AsyncClient, node: MemoryNode, until: str, met: str
) -> None:
    assert (await http.post("/accounts/ann")).status_code == 201
    async with client_of(create_api(node, camels)) as asked:
        answer = await asked.get("/camels/ann", params={"until": until})
    assert (answer.status_code, answer.headers.get("onefold-until")) == (200, met)
