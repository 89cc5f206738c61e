"""`/ui` of a worker: the page of its own service, for whoever may ask the worker without it.

What it shows and does are requests to the API, made by the viewer's browser with the viewer's token. One is answered
here: the stream, which has what `/cluster` says and which events there are, and needs `operations:read` as those do.
The files have nothing in them, and are open.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of the nested functions below.

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, RedirectResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from starlette.routing import BaseRoute, Mount, Route

from shared.console.app import STATIC
from shared.console.feed import Feed
from shared.console.picture import Declared, Looks, Picture
from shared.console.watch import EVERY_S, News, tail_of
from shared.http.api import PAGE, Page
from shared.http.auth import caller_of
from shared.http.changes import ended, until
from shared.http.cluster import whole_cluster
from shared.http.health import Standing
from shared.http.limits import client_of
from shared.http.node import Node
from shared.http.peers import Peers


def page_of(declared: Declared) -> Page:
    """Makes the routes of a worker of this service."""
    return partial(_routes, declared)


def _routes(declared: Declared, node: Node, peers: Peers) -> tuple[APIRouter, Sequence[BaseRoute]]:
    watched = _Own(declared, node, peers)
    feed = Feed(watched.look, EVERY_S)
    router = APIRouter(include_in_schema=False)

    async def opened(request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        with request.app.state.streams.place(client_of(request)), watched.seen_by(request):
            async with aclosing(feed.frames()) as frames:
                yield until(partial(ended, request.app.state.closing, caller_of(request)), frames)

    @router.get(f"{PAGE}/stream", response_class=EventSourceResponse)
    async def stream(frames: Annotated[AsyncIterator[bytes], Depends(opened)]) -> AsyncIterator[ServerSentEvent]:
        """A Picture in each event, until the caller's token expires."""
        async for frame in frames:
            yield ServerSentEvent(raw_data=frame.decode())

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

    @contextmanager
    def seen_by(self, request: Request) -> Iterator[None]:
        """Peers are asked in the name of one who may see it."""
        self._viewers.append(request)
        try:
            yield
        finally:
            self._viewers.remove(request)

    async def look(self) -> bytes:
        """A Picture as JSON."""
        cluster = await whole_cluster(self._viewers[0], self._node, self._peers)
        await self._news.read()
        settings = self._node.settings
        shown = self._looks.shown(self._declared, settings.url, cluster, (), time.monotonic(), Standing.at(self._node))
        picture = Picture(
            at=time.time(),
            services=[shown],
            newest=self._news.newest,
            operator=f"{PAGE} of {self._declared.name}-{settings.instance}",
            with_token=settings.auth == "on",
            own=True,
        )
        return picture.model_dump_json().encode()
