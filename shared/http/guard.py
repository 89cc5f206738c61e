"""What a caller may do, as dependencies of routes: default is no.

`<service>:read` and `<service>:write` open a service's routes, `operations:read` and `operations:write` those of who
runs it. Where aggregates have owners, a caller touches its own;
`<service>:any` touches all, and lists.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from shared.http.auth import Authority, Tokens
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


# Called, not depended on: FastAPI goes through every dependency's own dependencies at each request.
async def authenticated(request: Request) -> Authority | None:
    """Who asks, found out once a request; None when anybody may do anything."""
    if not hasattr(request.state, "authority"):
        request.state.authority = await _authority(request)
    found: Authority | None = request.state.authority
    return found


async def _authority(request: Request) -> Authority | None:
    tokens: Tokens | None = request.app.state.tokens
    if tokens is None:
        return None
    call = peer_call(request)
    if call is not None and call.authority is not None:
        return call.authority
    credentials = await _bearer(request)
    if credentials is None:
        raise Unauthenticated("a bearer token is needed")
    authority = await tokens.verify(credentials.credentials)
    buckets: Buckets = request.app.state.buckets
    wait_s = buckets.take(f"subject {authority.subject}")
    if wait_s > 0:
        raise TooMany(wait_s)
    return authority


async def service_scope(request: Request) -> None:
    """Of every route of a service: read for GET, write for all else."""
    await _check_scope(request, request.app.state.service)


async def operations_scope(request: Request) -> None:
    """Of the routes that tell of the workers and mend what is parked."""
    await _check_scope(request, "operations")


async def _check_scope(request: Request, on: str) -> None:
    caller = await authenticated(request)
    if caller is not None:
        caller.check_scope(f"{on}:{'read' if request.method in ('GET', 'HEAD') else 'write'}")


def owned_by(parameter: str) -> Any:
    """For a router whose path, or query, has an aggregate's id in `parameter`: its owner only, or `<service>:any`."""

    async def check(request: Request) -> None:
        caller = await authenticated(request)
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
        return unquote(request.path_params[parameter], errors="strict")  # routed by the escaped path
    return request.query_params.get(parameter)
