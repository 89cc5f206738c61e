"""HEAD, which monitors and `curl -I` send: wherever there is a GET, without a route of its own."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Heads:
    """ASGI middleware: answers HEAD with the status and headers of GET, also from a peer; it is counted as a GET.

    The answer ends after its headers, and then the server says that the client is gone: a stream ends, too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body"})

        await self.app({**scope, "method": "GET"}, receive, without_body)
