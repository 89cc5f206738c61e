"""The worker's FastAPI: the service's own routes beside health and the view of the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Response

from shared.http import problems
from shared.http.limits import BodyLimit
from shared.http.node import Node
from shared.http.paths import SentPath
from shared.http.peers import Peers

Routes = Callable[[Node, Peers], APIRouter]


def create_api(node: Node, routes: Routes) -> FastAPI:
    peers = Peers()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await peers.close()

    dev = node.settings.env == "dev"
    api = FastAPI(
        title=node.topology.service,
        lifespan=lifespan,
        docs_url="/docs" if dev else None,
        redoc_url=None,
        openapi_url="/openapi.json" if dev else None,
        redirect_slashes=False,
    )
    api.add_middleware(BodyLimit)
    api.add_middleware(SentPath)
    problems.install(api)
    api.include_router(_health(node))
    api.include_router(routes(node, peers))
    return api


def _health(node: Node) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.get("/healthz")
    async def alive() -> dict[str, str]:
        """The process runs."""
        return {"status": "alive"}

    @router.get("/readyz", responses={503: {"model": problems.Problem}})
    async def ready() -> Response:
        """Every partition assigned to this worker is restored and served."""
        if node.ready():
            return Response('{"status":"ready"}', media_type="application/json")
        return problems.not_ready("joining the group, restoring or rebalancing")

    @router.get("/cluster")
    async def cluster() -> dict[str, Any]:
        """Who owns which partition, and how far this worker is with its own."""
        return dict(node.status())

    return router
