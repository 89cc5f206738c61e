"""The worker's FastAPI: the service's own routes beside what every service has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry, Gauge

from shared.http import dead_letters, problems
from shared.http.changes import Streams
from shared.http.health import health_routes, operator_routes
from shared.http.limits import BodyLimit
from shared.http.metrics import Measured, RequestMetrics, StatusCollector
from shared.http.node import Node
from shared.http.paths import SentPath
from shared.http.peers import Peers

Routes = Callable[[Node, Peers], Sequence[APIRouter]]


def create_api(node: Node, routes: Routes) -> FastAPI:
    peers = Peers()
    registry = CollectorRegistry()
    registry.register(StatusCollector(node.status))

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
    api.state.closing = asyncio.Event()  # set when the worker begins to stop: long answers end
    api.state.streams = streams = Streams(node.settings.max_streams)
    Gauge("onefold_change_streams", "Open streams of changes", registry=registry).set_function(lambda: streams.open)
    # the last one added sees a request first
    api.add_middleware(BodyLimit)
    api.add_middleware(Measured, metrics=RequestMetrics(registry))
    api.add_middleware(SentPath)
    problems.install(api)
    api.include_router(health_routes(node, peers))
    api.include_router(operator_routes(node, peers, registry))
    api.include_router(dead_letters.router(node, peers))
    for router in routes(node, peers):
        api.include_router(router)
    return api
