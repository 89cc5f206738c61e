"""The console's own small server: the page, the stream that it draws, and what it asks. It listens on loopback only.

Whoever reaches it sees what the operator's token shows, does with dead letters what it allows, and runs the commands
that are handed in. A page of another origin can't: it may neither read answers nor use another name for this host.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of the nested functions below.

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.console.feed import Feed
from shared.console.picture import Verb
from shared.console.watch import EVERY_S, NotPassed, Passed, Watcher
from shared.http.limits import PAGE_POLICY
from shared.http.waiting import while_connected

HOST = "127.0.0.1"
STATIC = Path(__file__).with_name("static")
HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", PAGE_POLICY),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


class PageHeaders:
    """ASGI middleware: the browser loads nothing from another host, and no other page may show or read this one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        await self.app(scope, receive, with_headers)


class Controls(Protocol):
    """What the page may do to workers: in dev alone. Both are blocking, and raise LookupError."""

    def kill(self, url: str) -> None:
        """SIGKILL to the worker at `url`, like a machine that loses power."""

    def add(self, service: str) -> None:
        """Start one more worker."""


Begin = Callable[["Order"], None]
"""Begins a run. Blocking. Raises LookupError where it may not."""


class Mend(BaseModel):
    """What to do with the first record of a dead letter, and why. offset, data: as the worker's routes take them."""

    model_config = ConfigDict(extra="forbid")

    service: str
    id: str
    action: Literal["retry", "discard", "correct"]
    reason: Annotated[str, Field(min_length=1, max_length=200)]
    offset: int | None = None
    data: dict[str, Any] | None = None


class Act(BaseModel):
    """worker: the URL of the one to kill; service: the one to add a worker to."""

    model_config = ConfigDict(extra="forbid")

    worker: str | None = None
    service: str | None = None


class Order(BaseModel):
    """What to run. version: the one to retire. reason: why; parity, compare and rebuild keep none."""

    model_config = ConfigDict(extra="forbid")

    service: str
    verb: Verb
    version: Annotated[int | None, Field(ge=1)] = None
    reason: Annotated[str, Field(max_length=200)] = ""


def create_console(
    watcher: Watcher,
    controls: Controls | None = None,
    asyncapi: Callable[[], Any] = dict,
    begin: Begin | None = None,
) -> FastAPI:
    """asyncapi: the document of all services, made when somebody asks for it. begin: begins a run."""
    feed = Feed(watcher.look, EVERY_S)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await watcher.close()

    console = FastAPI(title="console", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    console.state.feed = feed
    console.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])  # another name may be rebound
    console.add_middleware(PageHeaders)

    @console.get("/")
    async def page() -> Response:
        return FileResponse(STATIC / "index.html")

    @console.get("/asyncapi.json")
    async def messages() -> Response:
        return JSONResponse(await asyncio.to_thread(asyncapi))

    @console.get("/stream")
    async def stream() -> Response:
        """A Picture in each event, for as long as somebody reads."""
        return StreamingResponse(events_of(feed), media_type="text/event-stream")

    @console.get("/ask/{service}/{target:path}")
    async def ask(service: str, request: Request, onefold_console: Annotated[str, Header()]) -> Response:
        """What a worker of the service answers to GET of the target, which is sent on as it came.

        The header is as below: another page could read nothing, and yet take up the operator's turns. Nor does a worker
        go on with what a viewer has given up.
        """
        target = request.scope["raw_path"].split(b"/", 3)[3]
        if query := request.scope["query_string"]:
            target += b"?" + query
        return await while_connected(request, _answer(watcher.pass_on(service, f"/{target.decode('ascii')}")))

    if controls is not None:
        _let_act(console, controls)
    if begin is not None:
        _let_run(console, begin)
    if watcher.operator is not None:
        _let_mend(console, watcher, watcher.operator)
    console.mount("/static", StaticFiles(directory=STATIC))
    return console


def _let_act(console: FastAPI, controls: Controls) -> None:
    @console.post("/workers", status_code=202)
    async def act(body: Act, onefold_console: Annotated[str, Header()]) -> Response:
        """The header is one that a page of another origin may not send."""
        try:
            if body.worker is not None:
                await asyncio.to_thread(controls.kill, body.worker)
            if body.service is not None:
                await asyncio.to_thread(controls.add, body.service)
        except LookupError as unknown:
            return PlainTextResponse(str(unknown), 404)
        return Response(status_code=202)


def _let_run(console: FastAPI, begin: Begin) -> None:
    @console.post("/runs", status_code=202)
    async def run(body: Order, onefold_console: Annotated[str, Header()]) -> Response:
        """The header is as above."""
        try:
            await asyncio.to_thread(begin, body)
        except LookupError as refused:
            return PlainTextResponse(str(refused), 409)
        return Response(status_code=202)


def _let_mend(console: FastAPI, watcher: Watcher, operator: str) -> None:
    @console.post("/dead-letters")
    async def mend(body: Mend, onefold_console: Annotated[str, Header()]) -> Response:
        """The header is as above. Who asks is the token's bearer, or else the operator."""
        what = body.model_dump(include={"reason", "offset", "data"}, exclude_unset=True)
        target = f"/dead-letters/{quote(body.id, safe='')}/{body.action}"
        return await _answer(watcher.pass_on(body.service, target, what | {"by": operator}))


async def _answer(passed: Awaitable[Passed]) -> Response:
    try:
        status, media_type, body = await passed
    except NotPassed as why:
        return JSONResponse({"detail": str(why)}, 502)
    return Response(body, status, media_type=media_type)


async def events_of(feed: Feed, over: asyncio.Future[None] | None = None) -> AsyncIterator[bytes]:
    """Its frames as Server-Sent Events, until `over` is done."""
    async with aclosing(feed.frames(over)) as frames:
        async for frame in frames:
            yield b"data: " + frame + b"\n\n"


def serve(console: FastAPI, port: int) -> None:
    """Until SIGINT or SIGTERM."""
    uvicorn.run(console, host=HOST, port=port, log_config=None, access_log=False, timeout_graceful_shutdown=1)
