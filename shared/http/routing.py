"""Routes as a request costs least: FastAPI does much for each that only few need, for a GET by key most of its time."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute, request_response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.queries import Reading


def routes_of(router: APIRouter) -> list[APIRoute]:
    """To be matched one by one: FastAPI matches a router that is included route by route, twice."""
    return [_quick(route) for route in router.routes]


def _quick(route: BaseRoute) -> APIRoute:
    if not isinstance(route, APIRoute):
        raise TypeError(f"{route!r} is no route with a method: give routers side by side, not one in another")
    readings = {
        field.name: field.field_info.annotation()
        for field in route.dependant.query_params
        if isinstance(field.field_info.annotation, type) and issubclass(field.field_info.annotation, Reading)
    }
    if readings:
        route.app = _by_query(route.app, _without(route, readings))
    return route


def _without(route: APIRoute, readings: dict[str, Any]) -> ASGIApp:
    """The route's app that gives its function these readings instead of validating each of their fields."""
    query = [field for field in route.dependant.query_params if field.name not in readings]
    plain = copy(route)
    plain.dependant = replace(route.dependant, query_params=query, call=partial(route.endpoint, **readings))
    return request_response(plain.get_route_handler())


def _by_query(app: ASGIApp, plain: ASGIApp) -> ASGIApp:
    async def choose(scope: Scope, receive: Receive, send: Send) -> None:
        await (app if scope["query_string"] else plain)(scope, receive, send)

    return choose
