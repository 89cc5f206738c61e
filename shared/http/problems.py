"""Errors as problem+json (RFC 9457). The only place that knows which error has which HTTP status."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from shared.domain.errors import NotReady, RowUnreadable
from shared.http.refusals import Archived, Forbidden, TooMany, Unauthenticated
from shared.kafka.producer import SendError
from shared.privacy.persons import Forgotten

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1

_INVALID_TOKEN = {"WWW-Authenticate": 'Bearer error="invalid_token"'}


class Problem(BaseModel):
    """The body of every answer that is not a success. code: stable, for programs."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    errors: list[dict[str, Any]] | None = None


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    errors: list[dict[str, Any]] | None = None,
) -> JSONResponse:
    body = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, code=code, errors=errors)
    return JSONResponse(body.model_dump(exclude_none=True), status, headers=headers, media_type=MEDIA_TYPE)


def not_ready(detail: str) -> JSONResponse:
    return problem(503, "not_ready", detail, headers={"Retry-After": str(RETRY_AFTER_S)})


def too_many(error: TooMany) -> JSONResponse:
    headers = {"Retry-After": str(max(1, math.ceil(error.wait_s)))}
    return problem(429, "rate.limited", str(error), headers=headers)


def on_bug(path: str, error: Exception) -> JSONResponse:
    log.error("unhandled error", path=path, exc_info=error)
    return problem(500, "internal", "a bug on our side, recorded in the worker's log; a command may have taken effect")


def install(api: FastAPI) -> None:
    """Make every expected error of `api` a problem+json; `shared.http.limits.BugsAs500` does it for the others."""
    for kind in _ANSWERS:
        api.add_exception_handler(kind, answer_to)


async def answer_to(request: Request, error: Exception) -> Response:
    """What `request` is answered for this error, maybe as a part of an answer to more than that."""
    for kind in type(error).__mro__:
        if answer := _ANSWERS.get(kind):
            return answer(request, error)
    return on_bug(request.url.path, error)


def not_valid(place: str, name: str, message: str) -> RequestValidationError:
    """For a parameter that FastAPI has let pass; place: such as `query`."""
    return RequestValidationError([{"loc": (place, name), "msg": message, "type": "value_error"}])


def _on_unreadable(request: Request, error: RowUnreadable) -> JSONResponse:
    log.error("a row can't be read", path=request.url.path, reason=str(error))
    return problem(500, RowUnreadable.code, str(error))


def _on_send_error(request: Request, error: SendError) -> JSONResponse:
    if error.retriable:
        return not_ready(f"the broker did not take the command: {error}. Use the same Idempotency-Key again")
    return on_bug(request.url.path, error)


def _on_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    errors = [
        {"field": ".".join(str(part) for part in item["loc"]), "message": item["msg"], "kind": item["type"]}
        for item in error.errors()
    ]
    return _invalid(errors)


def _invalid(errors: list[dict[str, Any]]) -> JSONResponse:
    return problem(422, "request.invalid", f"{errors[0]['field']}: {errors[0]['message']}", errors=errors)


def _on_http_error(request: Request, error: HTTPException) -> JSONResponse:
    if error.status_code == HTTPStatus.BAD_REQUEST:  # FastAPI's, when json fails with anything but a JSONDecodeError
        return _invalid([{"field": "body", "message": "can't be read as JSON", "kind": "json_invalid"}])
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = _allowed(request, headers.get("Allow", ""))
    return problem(error.status_code, code, str(error.detail), headers=headers)


def _allowed(request: Request, by_first: str) -> str:
    """The methods of all routes with this path; by_first: those of the first, which is all that Starlette names."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in routes for method in getattr(route, "methods", None) or ()}
    methods |= {*filter(None, by_first.split(", "))}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


_ANSWERS: Mapping[type, Callable[[Request, Any], Response]] = {
    NotReady: lambda _, error: not_ready(str(error)),
    RowUnreadable: _on_unreadable,
    SendError: _on_send_error,
    RequestValidationError: _on_invalid,
    HTTPException: _on_http_error,
    Unauthenticated: lambda _, error: problem(401, "token.invalid", str(error), headers=_INVALID_TOKEN),
    Forbidden: lambda _, error: problem(403, error.code, str(error)),
    Archived: lambda _, error: problem(410, "history.archived", str(error)),
    TooMany: lambda _, error: too_many(error),
    Forgotten: lambda _, error: problem(409, "person.forgotten", str(error)),
}
