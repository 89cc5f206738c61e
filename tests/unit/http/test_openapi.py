"""Generated requests, from each service's OpenAPI document, against its routes over tables in memory."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, assume, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation

from shared.dev.issuer import DevIssuer
from shared.dev.worker import free_port
from tests.unit.http.services import SERVICES, api_of, issuer_settings
from tests.waiting import eventually

pytestmark = pytest.mark.slow

EXAMPLES = 12
"""For each operation."""


@schemathesis.serializer("application/x-ndjson")
def one_line(_: Any, value: Any) -> bytes:
    return json.dumps(value).encode()


def operations() -> Iterator[Any]:
    for service in SERVICES:
        # the first is endless, the second asks brokers
        schema = schemathesis.openapi.from_dict(api_of(service).openapi()).exclude(path_regex="^/(changes|stories)/")
        for found in schema.get_all_operations():
            assert isinstance(found, Ok)
            operation = found.ok()
            yield pytest.param(service, operation, id=f"{service} {operation.label}")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> DevIssuer:
    return DevIssuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def url_of(issuer: DevIssuer) -> Iterator[dict[str, str]]:
    """Every service on a port of its own."""
    apis = {service: api_of(service, issuer_settings(issuer.key_set.parent, service)) for service in SERVICES}
    servers = {
        service: uvicorn.Server(uvicorn.Config(api, port=free_port(), log_config=None, lifespan="on"))
        for service, api in apis.items()
    }
    threads = [threading.Thread(target=asyncio.run, args=(server.serve(),)) for server in servers.values()]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: all(server.started for server in servers.values()))
        yield {service: f"http://127.0.0.1:{server.config.port}" for service, server in servers.items()}
    finally:
        for server in servers.values():
            server.should_exit = True
        for thread in threads:
            thread.join(10)


@pytest.mark.parametrize(("service", "operation"), list(operations()))
def test_no_request_breaks_the_contract(
    service: str, operation: APIOperation[Any, Any, Any, Any], url_of: dict[str, str], issuer: DevIssuer
) -> None:
    rights = [f"{service}:read", f"{service}:write", f"{service}:any", "operations:read", "operations:write"]
    headers = {"Authorization": f"Bearer {issuer.token(service, rights, 'clerk')}"}

    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Case[Any]) -> None:
        # a body that may be left out, or null, is taken for a violation when it is
        assume(isinstance(case.body, dict) or not list(operation.body))
        _make_possible(case)
        case.call_and_validate(base_url=url_of[service], headers=headers)

    ask()


def _make_possible(case: Case[Any]) -> None:
    """Removes values that a schema allows but no caller can mean."""
    if case.query:
        case.query.pop("cursor", None)  # opaque: only a list's own are any use
        case.query |= {"partitions": "0,7"} if "partitions" in case.query else {}  # there are eight
        case.query |= {"wait": 0} if "wait" in case.query else {}  # what is waited for would never come
    if case.headers and "occurred-at" in case.headers:
        case.headers["occurred-at"] = "2026-11-20T10:00:00Z"  # not in the future
    if case.headers:
        case.headers.pop("if-match", None)  # 412 unless it is the sequence by chance
    case.body = _whole(case.body)


def _whole(body: Any) -> Any:
    """JSON Schema takes 5.0 for an integer, and Schemathesis rounds bounds of 64 bits to floats."""
    match body:
        case dict():
            return {name: _whole(value) for name, value in body.items()}
        case list():
            return [_whole(value) for value in body]
        case bool() | None | str():
            return body
        case int() | float() if body == int(body):
            return max(-(2**63), min(int(body), 2**63 - 1))
        case _:
            return body
