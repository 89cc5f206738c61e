"""The steps of FastAPI that are skipped for speed change no answer."""

from __future__ import annotations

from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from shared.http import problems
from shared.http.paths import PathId, SentPath
from shared.http.queries import Reading, ReadingQuery
from shared.http.routing import routes_of

pytestmark = pytest.mark.anyio


class Sized(Reading):
    size: int = Field(ge=1)


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
    ],
)
async def test_answers_are_those_of_an_included_router(target: str) -> None:
    answers = []
    for add in (included, quick):
        api = FastAPI()
        problems.install(api)
        add(api)
        transport = httpx.ASGITransport(SentPath(api))
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as http:
            answer = await http.get(target)
        answers.append((answer.status_code, answer.json()))
    assert answers[0] == answers[1]
    assert answers[0][0] in (200, 422)


def test_a_router_in_a_router_is_refused_not_left_unguarded() -> None:
    outer = APIRouter(prefix="/shop")
    outer.include_router(asked())
    with pytest.raises(TypeError, match="side by side"):
        routes_of(outer)
