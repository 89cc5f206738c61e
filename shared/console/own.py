"""`/ui` of a worker: the page of its own service, for whoever may ask the worker without it.

What it shows and does are requests to the API, made by the viewer's browser with the viewer's token. One is answered
here: the stream, which has what `/cluster` says and which events there are, and needs `operations:read` as those do.
The files have nothing in them, and are open.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of the nested functions below.

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, RedirectResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.routing import BaseRoute, Mount, Route

from shared.console.app import STATIC, events_of
from shared.console.feed import Feed
from shared.console.picture import Declared, Looks, Picture, Shown
from shared.console.watch import COUNTED_EVERY_S, EVERY_S, News, tail_of
from shared.http.api import PAGE, Page
from shared.http.auth import caller_of
from shared.http.changes import ended
from shared.http.cluster import whole_cluster
from shared.http.health import Standing
from shared.http.limits import client_of
from shared.http.node import Node
from shared.http.peers import Peers

UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def page_of(declared: Declared) -> Page:
    """Makes the routes of a worker of this service."""
    return partial(_routes, declared)


def _routes(declared: Declared, node: Node, peers: Peers) -> tuple[APIRouter, Sequence[BaseRoute]]:
    watched = _Own(declared, node, peers)
    feed = Feed(watched.look, EVERY_S)
    router = APIRouter(include_in_schema=False)

    async def opened(request: Request) -> AsyncIterator[asyncio.Future[None]]:
        with request.app.state.streams.place(client_of(request)), watched.seen_by(request):
            over = asyncio.ensure_future(ended(request.app.state.closing, caller_of(request)))
            try:
                yield over
            finally:
                over.cancel()

    @router.get(f"{PAGE}/stream")
    async def stream(over: Annotated[asyncio.Future[None], Depends(opened)]) -> Response:
        """A Picture in each event, until the caller's token expires. FastAPI's own events take five times as long."""
        return StreamingResponse(events_of(feed, over), media_type="text/event-stream", headers=UNBUFFERED)

    async def index(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def with_slash(_: Request) -> Response:
        return RedirectResponse(f"{PAGE.removeprefix('/')}/")  # relative: a proxy may serve it below another path

    files = [Route(PAGE, with_slash), Route(f"{PAGE}/", index), Mount(f"{PAGE}/static", StaticFiles(directory=STATIC))]
    return router, files


class _Own:
    """What this worker's service looks like."""

    def __init__(self, declared: Declared, node: Node, peers: Peers) -> None:
        self._declared = declared
        self._node = node
        self._peers = peers
        self._looks = Looks()
        self._news = News(tail_of([node.topology], node.settings.bootstrap))
        self._viewers: list[Request] = []
        self._shown: Sequence[Shown] = ()
        self._counted_at = -math.inf
        self._seen: object = None
        self._frame = b""

    @contextmanager
    def seen_by(self, request: Request) -> Iterator[None]:
        """Peers are asked in the name of one who may see it."""
        self._viewers.append(request)
        try:
            yield
        finally:
            self._viewers.remove(request)

    async def look(self) -> bytes:
        """A Picture as JSON; the last one where nothing is new."""
        if (now := time.monotonic()) >= self._counted_at + COUNTED_EVERY_S:
            self._shown, self._counted_at = await self._counted(), now
        await self._news.read()
        if (seen := (self._counted_at, self._news.newest)) != self._seen:
            self._seen, self._frame = seen, self._picture().model_dump_json().encode()
        return self._frame

    def _picture(self) -> Picture:
        settings = self._node.settings
        return Picture(
            at=time.time(),
            services=self._shown,
            newest=self._news.newest,
            operator=f"{PAGE} of {self._declared.name}-{settings.instance}",
            with_token=settings.auth == "on",
            own=True,
        )

    async def _counted(self) -> Sequence[Shown]:
        cluster = await whole_cluster(self._viewers[0], self._node, self._peers)
        standing = Standing.at(self._node)
        url, now = self._node.settings.url, time.monotonic()
        return [self._looks.shown(self._declared, url, cluster, (), now, standing)]
