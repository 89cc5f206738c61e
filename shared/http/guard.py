"""Authorization, checked before each route; whatever is not allowed is forbidden.

`<service>:read` and `<service>:write` open a service's routes, `operations:read` and `operations:write` those of its
operators. Where aggregates have owners, a caller may access only its own; `<service>:any` allows all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.http.auth import Authority, OwnRows, Tokens
from shared.http.limits import BodyLimit, Buckets, HeldBytes
from shared.http.peers import PeerBodies, peer_call
from shared.http.problems import Problem
from shared.http.refusals import Forbidden, TooMany, Unauthenticated
from shared.http.routing import routes_of

RESPONSES: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "No bearer token, or an invalid one"},
    403: {"model": Problem, "description": "The token lacks a scope, or its bearer owns another aggregate"},
    429: {"model": Problem, "description": "Too many requests from this client; see Retry-After"},
}

_HIDDEN: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "Nothing that the caller owns has this id"}
}

_bearer = HTTPBearer(auto_error=False)


class OwnedRouter(APIRouter):
    """Its routes are for the owners of aggregates, or with `<service>:any` for everybody.

    id_in: the parameter with the aggregate's id, which is its owner's. It is a path parameter, or in a path without
    parameters a query parameter, which the route has to declare and to filter by; without it, only with `:any`.

    owned_by: the field of rows and commands that names the owner. Others' rows are not found, and not listed; Queries,
    History, Lists and Commands see to that, and a route of another kind has to ask `shared.http.auth.own_rows`.
    """

    def __init__(self, id_in: str | None = None, *, owned_by: str | None = None, **settings: Any) -> None:
        """Raises ValueError, unless given one of `id_in` and `owned_by`."""
        super().__init__(**settings)
        if (id_in is None) == (owned_by is None):
            raise ValueError("OwnedRouter does not know the owner; fix: give it either the id's parameter or owned_by=")
        self.id_in = id_in
        self.owned_by = owned_by

    def add_api_route(self, path: str, *arguments: Any, **settings: Any) -> None:
        """Raises ValueError for a path with parameters but not `id_in`."""
        super().add_api_route(path, *arguments, **settings)
        route = self.routes[-1]
        if self.id_in is None:
            return
        if isinstance(route, APIRoute) and route.param_convertors and self.id_in not in route.param_convertors:
            raise ValueError(
                f"{route.path} does not have the path parameter {self.id_in!r}, by which OwnedRouter knows the owner; "
                f"fix: name its aggregate's id {{{self.id_in}}}, or use another router if it shows no aggregate"
            )


class Guard:
    """Lets callers through whose token has the route's scope; everybody when authentication is off."""

    def __init__(self, tokens: Tokens | None, buckets: Buckets) -> None:
        self._tokens = tokens
        self._buckets = buckets
        self._held = HeldBytes()

    def around(self, router: APIRouter, on: str) -> list[APIRoute]:
        """The router's routes, which now need `on`:read for GET, `on`:write for all else, and say so in the OpenAPI."""
        id_in, owned_by = (router.id_in, router.owned_by) if isinstance(router, OwnedRouter) else (None, None)
        return [self._guarded(route, on, id_in, owned_by) for route in routes_of(router)]

    def _guarded(self, route: APIRoute, on: str, id_in: str | None, owned_by: str | None) -> APIRoute:
        route.responses = RESPONSES | (_HIDDEN if owned_by else {}) | route.responses
        route.app = BodyLimit(PeerBodies(route.app), self._held)  # a body is read once its sender may send it
        if self._tokens is not None:  # not a FastAPI dependency, which costs ten times as much
            route.app = self._checking(route, on, id_in, owned_by, self._tokens)
        return route

    def _checking(self, route: APIRoute, on: str, id_in: str | None, owned_by: str | None, tokens: Tokens) -> ASGIApp:
        app = route.app
        in_query = id_in is not None and _reads(route.dependant, id_in)

        async def check(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope)
            caller = await self._caller(request, tokens)
            caller.check_scope(f"{on}:{'read' if scope['method'] in ('GET', 'HEAD') else 'write'}")
            if id_in is not None:
                _check_owner(caller, on, _requested_ids(request, id_in, in_query))
            scope["onefold.caller"] = caller
            if owned_by is not None and f"{on}:any" not in caller.scopes:
                scope["onefold.own_rows"] = own = OwnRows(owned_by, caller.owner)
                send = _once_heeded(own, route, send)
            await app(scope, receive, send)

        return check

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


def _once_heeded(own: OwnRows, route: APIRoute, send: Send) -> Send:
    """Sends no success of a route that did not ask which rows are the caller's."""

    async def checked(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] < 400 and not own.heeded:
            raise RuntimeError(f"{route.path} does not ask whose rows it shows; fix: use Queries, or own_rows(request)")
        await send(message)

    return checked


def _check_owner(caller: Authority, service: str, requested: Sequence[str]) -> None:
    """requested: aggregates' ids; none for all of them. Raises Forbidden."""
    if not requested:
        caller.check_scope(f"{service}:any")
    elif {*requested} != {caller.owner} and f"{service}:any" not in caller.scopes:
        raise Forbidden("owner.other", "the token's bearer does not own this aggregate")


def _requested_ids(request: Request, parameter: str, in_query: bool) -> Sequence[str]:
    if parameter in request.path_params:
        return [unquote(request.path_params[parameter])]  # routed by the escaped path
    return request.query_params.getlist(parameter) if in_query else []


def _reads(takes: Dependant, parameter: str) -> bool:
    """Whether a route reads this query parameter, under this name only; it ignores one that it does not declare."""
    fields: dict[str, FieldInfo] = {}
    for each in takes.query_params:
        kind = each.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields |= kind.model_fields
        else:
            fields[each.name] = each.field_info
    own = parameter in fields and fields[parameter].validation_alias in (None, parameter)
    return own or any(_reads(each, parameter) for each in takes.dependencies)
