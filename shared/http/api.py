"""The worker's FastAPI application: the service's own routes and those that every service has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry, Gauge, GCCollector, ProcessCollector
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute

from shared.http import dead_letters, openapi, problems, stories
from shared.http.auth import tokens_of
from shared.http.changes import Streams
from shared.http.guard import Guard
from shared.http.heads import Heads
from shared.http.health import PROBES, health_routes, operator_routes
from shared.http.limits import (
    Buckets,
    BugsAs500,
    RateLimit,
    SecureHeaders,
    TargetLimit,
    TimeLimit,
    Turns,
    UnreadBodies,
)
from shared.http.lines import MAX_IN_FLIGHT
from shared.http.metrics import Measured, RequestMetrics, StatusCollector
from shared.http.node import Node
from shared.http.paths import SentPath
from shared.http.peers import PeerCalls, Peers, PeerTokens, peer_tokens
from shared.http.routing import routes_of
from shared.runtime.settings import Settings

EXPOSED = (
    "ETag",
    "Location",
    "Retry-After",
    "Onefold-Lag",
    "Onefold-Owner",
    "Onefold-Partition",
    "Onefold-Position",
    "Onefold-Until",
    "Onefold-Version",
)
Routes = Callable[[Node, Peers], Sequence[APIRouter]]
"""A Resource, or a function that makes routers with FastAPI."""


PAGE = "/ui"
Page = Callable[[Node, Peers], tuple[APIRouter, Sequence[BaseRoute]]]
"""What makes the page at PAGE: routes for operators, and files that anybody may read."""


def together(*several: Routes) -> Routes:
    """The routes of several Resources and functions, which are tried in this order."""

    def routes(node: Node, peers: Peers) -> list[APIRouter]:
        return [router for each in several for router in each(node, peers)]

    return routes


def create_api(node: Node, routes: Routes, page: Page | None = None) -> FastAPI:
    """page: None for none, as `settings.ui` may say, too."""
    service, settings = node.topology.service, node.settings
    peers = Peers(service, settings)
    registry = CollectorRegistry()
    registry.register(StatusCollector(node.status))
    ProcessCollector(registry=registry)  # the process's own memory, CPU time and open files
    GCCollector(registry=registry)

    if node.tracing is not None:
        registry.register(node.tracing.spans)

    tokens = tokens_of(settings)
    if tokens is not None:
        age = Gauge("onefold_issuer_keys_age_seconds", "Since the issuer's keys were read last", registry=registry)
        age.set_function(lambda: tokens.keys.age_s)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        keeping = None if tokens is None else asyncio.ensure_future(tokens.keys.keep())
        yield
        if keeping is not None:
            keeping.cancel()
        await peers.close()

    dev = settings.env == "dev"
    api = FastAPI(
        title=service,
        lifespan=lifespan,
        docs_url="/docs" if dev else None,
        redoc_url=None,
        openapi_url="/openapi.json" if dev else None,
        redirect_slashes=False,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
        },  # there are shared/runtime/tracing.py and /metrics
    )
    buckets, streams = Buckets(settings.rate_limit), Streams(settings.max_streams, settings.max_streams_per_caller)
    api.state.buckets, api.state.streams = buckets, streams
    api.state.turns = Turns(settings.max_readers)
    api.state.lines = Turns(MAX_IN_FLIGHT, of="lines")
    api.state.closing = asyncio.Event()  # set when the worker begins to stop, so that long answers end
    Gauge("onefold_change_streams", "Open streams of changes, and viewers of /ui", registry=registry).set_function(
        lambda: streams.open
    )
    problems.install(api)
    openapi.install(api)
    api.state.metrics = metrics = RequestMetrics(registry)
    _protect(api, peer_tokens(service, settings), buckets, metrics, settings)
    guard = Guard(tokens, buckets)
    for router in routes(node, peers):
        api.router.routes += guard.around(router, service)
    for router in (operator_routes(node, peers, registry), dead_letters.router(node, peers), stories.router(node)):
        api.router.routes += guard.around(router, "operations")
    api.router.routes += routes_of(health_routes(node, peers))
    if page is not None and settings.shows_page:
        told, files = page(node, peers)
        api.router.routes += [*guard.around(told, "operations"), *files]
    return api


def _protect(api: FastAPI, tokens: PeerTokens, buckets: Buckets, metrics: RequestMetrics, settings: Settings) -> None:
    """Adds the middleware, innermost first."""
    dev = settings.env == "dev"
    api.add_middleware(UnreadBodies)
    api.add_middleware(TimeLimit)
    api.add_middleware(TargetLimit)
    api.add_middleware(RateLimit, buckets=buckets, spared=PROBES)
    api.add_middleware(PeerCalls, tokens=tokens, buckets=buckets)
    api.add_middleware(BugsAs500)
    if settings.cors_origins:
        # outside refusals, which a page could not read otherwise; to refuse a preflight would cost what its answer does
        _open_to(api, settings.cors_origins.split(","))
    docs = frozenset({"/docs"}) if dev else frozenset()
    api.add_middleware(SecureHeaders, secure=not dev, docs=docs, page=f"{PAGE}/")
    api.add_middleware(Measured, metrics=metrics, logs=settings.access_log == "on")
    api.add_middleware(SentPath)
    api.add_middleware(Heads)


def _open_to(api: FastAPI, origins: Sequence[str]) -> None:
    """Lets the pages of these origins send anything, also a bearer token, and read EXPOSED; there are no cookies."""
    api.add_middleware(
        CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED
    )
