"""FastAPI runs the plain functions of a request in threads, at more cost than most of them have: ours are async."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant

from shared.http.peers import Peers
from shared.runtime.settings import Settings
from shared.testing.node import MemoryNode
from tests.unit.http.services import SERVICES


def called(dependant: Dependant) -> Iterator[Callable[..., Any]]:
    if dependant.call is not None:
        yield dependant.call
    for below in dependant.dependencies:
        yield from called(below)


def is_async(function: Callable[..., Any]) -> bool:
    body = function if inspect.isfunction(function) else type(function).__call__
    return inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body)


@pytest.mark.parametrize("service", SERVICES)
def test_no_request_waits_for_a_thread(service: str) -> None:
    app = import_module(f"services.{service}.app").app
    peers = Peers(service, Settings())
    routers = import_module(f"services.{service}.api").routes(MemoryNode(app.topology, app.processors), peers)
    functions = [function for router in routers for route in router.routes for function in called(route.dependant)]
    assert functions
    assert [function.__qualname__ for function in functions if not is_async(function)] == []
