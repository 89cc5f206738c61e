"""Routes cheaper than FastAPI's, which does much for each request that few need: most of the time of a GET by key.

And stricter: one that takes no query parameters refuses any, as those with a model of them do; and one that is given
twice is refused, unless it is a list: FastAPI would take the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

from fastapi import APIRouter, Request, Response
from fastapi._compat import field_annotation_is_sequence
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import (
    get_flat_params,
    get_typed_return_annotation,
    get_validation_alias,
)
from fastapi.exceptions import RequestValidationError
from fastapi.params import Path
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.paths import UNESCAPED
from shared.http.queries import Reading


def routes_of(router: APIRouter) -> list[APIRoute]:
    """The routes, for adding one by one: FastAPI matches each route of an included router twice."""
    return [_quick(route) for route in router.routes]


def _quick(route: BaseRoute) -> APIRoute:
    if not isinstance(route, APIRoute):
        raise TypeError(f"{route!r} is not a route with a method: return routers side by side, not nested")
    _check_path(route)
    checked = _without_repeats(route) if _takes_query(route.dependant) else _without_query(route.app)
    route.app = _by_query(checked, _plain(route) or route.app)
    return route


def _check_path(route: APIRoute) -> None:
    """Raises ValueError: FastAPI would refuse each request for what its path can't give, or pass on escapes."""
    fields = [each for each in get_flat_params(route.dependant) if isinstance(each.field_info, Path)]
    if unlike := route.param_convertors.keys() ^ set(map(get_validation_alias, fields)):
        raise ValueError(
            f"{route.path} and its function {route.endpoint.__name__} do not agree on {', '.join(sorted(unlike))}; "
            f"fix: name the function's parameters as the path does"
        )
    if escaped := [each for each in fields if UNESCAPED not in each.field_info.metadata]:
        raise ValueError(
            f"{route.path}: {route.endpoint.__name__} would get {get_validation_alias(escaped[0])} with `%20` for a "
            f"space; fix: make it a PathId, a Segment or Annotated[…, UNESCAPED, Path()]"
        )


def _plain(route: APIRoute) -> ASGIApp | None:
    """The route's app for requests without a query string, if it takes nothing but the request, its path and an
    optional Reading, which is then always the same.
    """
    takes = route.dependant
    readings = {
        field.name: field.field_info.annotation()
        for field in takes.query_params
        if _is_optional_reading(field.field_info.annotation)
    }
    more = takes.dependencies or takes.header_params or takes.cookie_params or takes.body_params
    if not readings or len(readings) < len(takes.query_params) or more or takes.request_param_name is None:
        return None
    if get_typed_return_annotation(route.endpoint) is not Response:
        return None
    request_name, path_args = takes.request_param_name, path_args_of(takes)

    async def answer(request: Request) -> Response:
        answered: Response = await route.endpoint(**{request_name: request}, **path_args(request), **readings)
        return answered

    return request_response(answer)


def path_args_of(takes: Dependant) -> Callable[[Request], dict[str, Any]]:
    """What a route's function gets of the path, by parameter. It raises RequestValidationError, as FastAPI does."""
    fields = [(get_validation_alias(field), field) for field in takes.path_params]

    def read(request: Request) -> dict[str, Any]:
        args, errors = dict[str, Any](), list[Any]()
        for alias, field in fields:
            args[field.name], wrong = field.validate(request.path_params[alias], loc=("path", alias))
            errors += wrong
        if errors:
            raise RequestValidationError(errors)
        return args

    return read


def _is_optional_reading(kind: object) -> TypeGuard[type[Reading]]:
    if not (isinstance(kind, type) and issubclass(kind, Reading)):
        return False
    return not any(field.is_required() for field in kind.model_fields.values())


def _by_query(app: ASGIApp, plain: ASGIApp) -> ASGIApp:
    async def choose(scope: Scope, receive: Receive, send: Send) -> None:
        await (app if scope["query_string"] else plain)(scope, receive, send)

    return choose


def _takes_query(takes: Dependant) -> bool:
    return bool(takes.query_params) or any(map(_takes_query, takes.dependencies))


def _without_query(app: ASGIApp) -> ASGIApp:
    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        if sent := Request(scope).query_params:
            raise _refused(sent, "Extra inputs are not permitted", "extra_forbidden")  # pydantic's words
        await app(scope, receive, send)

    return check


def _without_repeats(route: APIRoute) -> ASGIApp:
    app, single = route.app, _single(route.dependant)

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        times = Counter(name for name, _ in Request(scope).query_params.multi_items())
        if repeated := [name for name in times.keys() & single if times[name] > 1]:
            fix = "give it once, with commas where it takes several values"
            raise _refused(sorted(repeated), f"given more than once; fix: {fix}", "value_error")
        await app(scope, receive, send)

    return check


def _single(takes: Dependant) -> set[str]:
    """The names of the parameters of which FastAPI takes one value."""
    fields = (each for each in get_flat_params(takes) if not field_annotation_is_sequence(each.field_info.annotation))
    return set(map(get_validation_alias, fields))


def _refused(names: Iterable[str], message: str, kind: str) -> RequestValidationError:
    return RequestValidationError([{"loc": ("query", name), "msg": message, "type": kind} for name in names])
