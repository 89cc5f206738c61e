"""What a caller may do, as dependencies of routes: default is no.

`<service>:read` and `<service>:write` open a service's routes, `operations:read` and `operations:write` those of who
runs it. Where aggregates have owners, a caller touches its own;
`<service>:any` touches all, and lists.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

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

bearer = HTTPBearer(bearerFormat="JWT", description="RS256 or ES256, of the configured issuer", auto_error=False)


async def authenticated(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> Authority | None:
    """Who asks, also for `request.state`; None when anybody may do anything."""
    request.state.authority = authority = await _authority(request, credentials)
    return authority


async def _authority(request: Request, credentials: HTTPAuthorizationCredentials | None) -> Authority | None:
    tokens: Tokens | None = request.app.state.tokens
    if tokens is None:
        return None
    call = peer_call(request)
    if call is not None and call.authority is not None:
        return call.authority
    if credentials is None:
        raise Unauthenticated("a bearer token is needed")
    authority = await tokens.verify(credentials.credentials)
    buckets: Buckets = request.app.state.buckets
    wait_s = buckets.take(f"subject {authority.subject}")
    if wait_s > 0:
        raise TooMany(wait_s)
    return authority


Caller = Annotated[Authority | None, Depends(authenticated)]


async def service_scope(request: Request, caller: Caller) -> None:
    """Of every route of a service: read for GET, write for all else."""
    if caller is not None:
        caller.check_scope(f"{request.app.state.service}:{_action(request)}")


async def operations_scope(request: Request, caller: Caller) -> None:
    """Of the routes that tell of the workers and mend what is parked."""
    if caller is not None:
        caller.check_scope(f"operations:{_action(request)}")


def _action(request: Request) -> str:
    return "read" if request.method in ("GET", "HEAD") else "write"


def owned_by(parameter: str) -> Any:
    """For a router whose path, or query, has an aggregate's id in `parameter`: its owner only, or `<service>:any`."""

    async def check(request: Request, caller: Caller) -> None:
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
