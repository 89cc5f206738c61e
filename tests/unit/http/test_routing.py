"""The steps of FastAPI that are skipped for speed change no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from shared.http import problems
from shared.http.paths import PathId, SentPath
from shared.http.queries import Reading, ReadingQuery
from shared.http.routing import routes_of
from tests.unit.http.services import client_of

pytestmark = pytest.mark.anyio


class Sized(Reading):
    size: int = Field(ge=1)


class Wanted(BaseModel):
    tags: list[str] = Field([], alias="tag")
    limit: int = 5


def asked() -> APIRouter:
    router = APIRouter(prefix="/things")

    @router.get("/{thing_id}")
    async def get_thing(request: Request, thing_id: PathId, reading: ReadingQuery) -> Response:
        return JSONResponse({"id": thing_id, "path": request.url.path, **reading.model_dump()})

    @router.get("/{thing_id}/name")
    async def get_name(request: Request, thing_id: PathId, reading: ReadingQuery) -> dict[str, object]:
        return {"name": thing_id, **reading.model_dump()}

    @router.get("/{thing_id}/parts")
    async def get_parts(request: Request, thing_id: PathId, reading: Annotated[Sized, Query()]) -> Response:
        return JSONResponse({"id": thing_id, **reading.model_dump()})

    @router.get("")
    async def list_things(query: Annotated[Wanted, Query()], size: Annotated[int, Query(alias="big")] = 0) -> list[str]:
        return [*query.tags, str(size)]

    return router


def included(api: FastAPI) -> None:
    api.include_router(asked())


def quick(api: FastAPI) -> None:
    api.router.routes += routes_of(asked())


@pytest.mark.parametrize(
    "target",
    [
        "/things/a",
        "/things/a?",
        "/things/a?x=1",
        "/things/a?wait=2&max_lag=3",
        "/things/a?wait=-1",
        "/things/%FF",
        "/things/%FF?wait=-1",
        "/things/a/name",
        "/things/%FF/name",
        "/things/a/name?wait=1",
        "/things/a/parts",
        "/things/a/parts?size=0",
        "/things/a/parts?size=1",
        "/things/a/parts?size=1&until=phase:open",
        "/things?tag=a&tag=b&big=1",
        "/things?other=1&other=2",
    ],
)
async def test_answers_are_those_of_an_included_router(target: str) -> None:
    first, second = [await answer(target, add) for add in (included, quick)]
    assert (first.status_code, first.json()) == (second.status_code, second.json())
    assert first.status_code in (200, 422)


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("/things/a?wait=1&wait=2", ["query.wait"]),
        ("/things/a/parts?wait=0&size=1&wait=0&size=2", ["query.size", "query.wait"]),
        ("/things?tag=a&tag=b&limit=1&limit=1", ["query.limit"]),
        ("/things?big=1&big=", ["query.big"]),
    ],
)
async def test_a_parameter_that_is_given_twice_is_refused_unless_it_is_a_list(target: str, fields: list[str]) -> None:
    """Not answered by its last value, while a proxy or a cache may have looked at the first."""
    refused = await answer(target, quick)
    assert (refused.status_code, [error["field"] for error in refused.json()["errors"]]) == (422, fields)
    assert refused.json()["detail"].startswith(f"{fields[0]}: given more than once; fix: give it once")


async def answer(target: str, add: Callable[[FastAPI], None]) -> httpx.Response:
    api = FastAPI()
    problems.install(api)
    add(api)
    async with client_of(SentPath(api)) as http:
        return await http.get(target)


def test_a_router_in_a_router_is_refused_not_left_unguarded() -> None:
    outer = APIRouter(prefix="/shop")
    outer.include_router(asked())
    with pytest.raises(TypeError, match="side by side"):
        routes_of(outer)


def test_a_parameter_that_would_keep_its_escapes_is_refused() -> None:
    router = APIRouter()

    @router.get("/things/{name}")
    async def get_thing(name: str) -> str:
        return name

    with pytest.raises(ValueError, match="get_thing would get name with `%20` for a space; fix: make it"):
        routes_of(router)


def test_a_path_and_a_function_with_other_parameters_are_refused() -> None:
    router = APIRouter()

    @router.get("/things/{name}")
    async def get_thing(thing_id: PathId) -> str:
        return thing_id

    with pytest.raises(
        ValueError, match=r"/things/\{name\} and its function get_thing do not agree on name, thing_id; fix"
    ):
        routes_of(router)
