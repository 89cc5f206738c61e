"""What a caller may do, asked before each route: default is no.

`<service>:read` and `<service>:write` open a service's routes, `operations:read` and `operations:write` those of who
runs it. Where aggregates have owners, a caller touches its own;
`<service>:any` touches all, and lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.auth import Authority, Tokens, caller_of
from shared.http.errors import Forbidden, TooMany, Unauthenticated
from shared.http.limits import Buckets
from shared.http.peers import peer_call
from shared.http.problems import Problem

RESPONSES: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "No bearer token, or none that counts here"},
    403: {"model": Problem, "description": "The token lacks a scope, or owns another aggregate"},
    429: {"model": Problem, "description": "Too many requests of this client; see Retry-After"},
}

_bearer = HTTPBearer(auto_error=False)


class Guard:
    """Lets callers through whose token has a route's scope; everybody where nobody is asked for a token."""

    def __init__(self, tokens: Tokens | None, buckets: Buckets) -> None:
        self._tokens = tokens
        self._buckets = buckets

    def around(self, routes: Iterable[APIRoute], on: str) -> list[APIRoute]:
        """The routes, which now need `on`:read for GET, `on`:write for all else, and say so in the OpenAPI."""
        return [self._guarded(route, on) for route in routes]

    def _guarded(self, route: APIRoute, on: str) -> APIRoute:
        route.responses = RESPONSES | route.responses
        if self._tokens is not None:
            route.app = self._asking(route.app, on, self._tokens)  # no dependency: those cost FastAPI ten times as much
        return route

    def _asking(self, app: ASGIApp, on: str, tokens: Tokens) -> ASGIApp:
        async def ask(scope: Scope, receive: Receive, send: Send) -> None:
            caller = await self._caller(Request(scope), tokens)
            caller.check_scope(f"{on}:{'read' if scope['method'] in ('GET', 'HEAD') else 'write'}")
            scope["onefold.caller"] = caller
            await app(scope, receive, send)

        return ask

    async def _caller(self, request: Request, tokens: Tokens) -> Authority:
        call = peer_call(request)
        if call is not None and call.authority is not None:
            return call.authority
        credentials = await _bearer(request)
        if credentials is None:
            raise Unauthenticated("a bearer token is needed")
        authority = await tokens.verify(credentials.credentials)
        wait_s = self._buckets.take(f"subject {authority.subject}")
        if wait_s > 0:
            raise TooMany(wait_s)
        return authority


def owned_by(parameter: str) -> Any:
    """For a router whose path, or query, has an aggregate's id in `parameter`: its owner only, or `<service>:any`."""

    async def check(request: Request) -> None:
        caller = caller_of(request)
        if caller is None or f"{request.app.state.service}:any" in caller.scopes:
            return
        asked = _asked(request, parameter)
        if asked is None:
            caller.check_scope(f"{request.app.state.service}:any")
        if asked != caller.owner:
            raise Forbidden("owner.other", "the token's bearer does not own this aggregate")

    return Depends(check)


def _asked(request: Request, parameter: str) -> str | None:
    if parameter in request.path_params:
        return unquote(request.path_params[parameter])  # routed by the escaped path
    return request.query_params.get(parameter)
