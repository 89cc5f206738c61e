"""What a caller may do, asked before each route: default is no.

`<service>:read` and `<service>:write` open a service's routes, `operations:read` and `operations:write` those of who
runs it. Where aggregates have owners, a caller touches its own; `<service>:any` touches all, and lists.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.auth import Authority, Tokens
from shared.http.errors import Forbidden, TooMany, Unauthenticated
from shared.http.limits import Buckets
from shared.http.peers import peer_call
from shared.http.problems import Problem
from shared.http.routing import routes_of

RESPONSES: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "No bearer token, or none that counts here"},
    403: {"model": Problem, "description": "The token lacks a scope, or owns another aggregate"},
    429: {"model": Problem, "description": "Too many requests of this client; see Retry-After"},
}

_bearer = HTTPBearer(auto_error=False)


class OwnedRouter(APIRouter):
    """Whose routes have an aggregate's id in `id_in`, of the path or the query: for its owner, or `<service>:any`."""

    def __init__(self, id_in: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.id_in = id_in


class Guard:
    """Lets callers through whose token has a route's scope; everybody where nobody is asked for a token."""

    def __init__(self, tokens: Tokens | None, buckets: Buckets) -> None:
        self._tokens = tokens
        self._buckets = buckets

    def around(self, router: APIRouter, on: str) -> list[APIRoute]:
        """Its routes, which now need `on`:read for GET, `on`:write for all else, and say so in the OpenAPI."""
        id_in = router.id_in if isinstance(router, OwnedRouter) else None
        return [self._guarded(route, on, id_in) for route in routes_of(router)]

    def _guarded(self, route: APIRoute, on: str, id_in: str | None) -> APIRoute:
        route.responses = RESPONSES | route.responses
        if self._tokens is not None:  # no dependency: those cost FastAPI ten times as much
            route.app = self._asking(route.app, on, id_in, self._tokens)
        return route

    def _asking(self, app: ASGIApp, on: str, id_in: str | None, tokens: Tokens) -> ASGIApp:
        async def ask(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope)
            caller = await self._caller(request, tokens)
            caller.check_scope(f"{on}:{'read' if scope['method'] in ('GET', 'HEAD') else 'write'}")
            if id_in is not None:
                _check_owner(caller, on, _asked(request, id_in))
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


def _check_owner(caller: Authority, service: str, asked: str | None) -> None:
    """asked: an aggregate's id; None for all of them. Raises Forbidden."""
    if asked is None:
        caller.check_scope(f"{service}:any")
    elif asked != caller.owner and f"{service}:any" not in caller.scopes:
        raise Forbidden("owner.other", "the token's bearer does not own this aggregate")


def _asked(request: Request, parameter: str) -> str | None:
    if parameter in request.path_params:
        return unquote(request.path_params[parameter])  # routed by the escaped path
    return request.query_params.get(parameter)
