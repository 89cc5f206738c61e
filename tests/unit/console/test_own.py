"""The page of one worker: its own service, for whoever may ask the worker; and in prod only where a setting says so."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from shared.console.own import page_of
from shared.console.picture import Declared
from shared.dev.issuer import DevIssuer
from shared.engine.processors import AggregateProcessor
from shared.engine.wiring import processors_of
from shared.http.api import Routes, create_api
from shared.runtime.settings import Settings
from shared.testing.node import MemoryNode
from tests.accounts.api import routes
from tests.accounts.domain.decide import DECIDER
from tests.accounts.service import SERVICE
from tests.accounts.topology import ACCOUNTS, EVENTS, TOPOLOGY
from tests.unit.http.services import client_of, issuer_settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def worker(settings: Settings | None = None, routes: Routes = routes) -> FastAPI:
    aggregates = AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)
    node = MemoryNode(TOPOLOGY, [aggregates], settings)
    return create_api(node, routes, page_of(Declared.of(TOPOLOGY, processors_of(SERVICE))))


async def first_picture(api: FastAPI, token: str = "", stays: bool = False) -> tuple[int, Any]:
    """The status of the stream's answer, and what its first event has. stays: until the worker ends it."""
    told, seen, status = b"", asyncio.Event(), 0

    async def receive() -> dict[str, Any]:
        if heard:
            await seen.wait()
            return {"type": "http.disconnect"}
        heard.append(True)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal told, status
        status = message.get("status", status)
        told += message.get("body", b"")
        if b"\n\n" in told and not stays:
            seen.set()

    heard: list[bool] = []
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/ui/stream",
        "raw_path": b"/ui/stream",
        "query_string": b"",
        "root_path": "",
        "client": ("127.0.0.1", 1),
        "server": ("worker", 80),
        "headers": [(b"authorization", f"Bearer {token}".encode())] if token else [],
    }
    await asyncio.wait_for(api(scope, receive, send), 30)
    (data,) = [line for line in told.decode().splitlines()[:1] if status == 200] or [""]
    return status, json.loads(data.removeprefix("data: ")) if data else None


async def test_it_shows_its_own_service_and_nothing_of_the_others() -> None:
    status, picture = await first_picture(worker())
    assert (status, picture["own"], picture["acts"], picture["doctor"]) == (200, True, False, None)
    (service,) = picture["services"]
    assert service["declared"]["name"] == TOPOLOGY.service
    assert service["declared"]["reads"] == ["accounts.commands.v1"]
    assert [each["owner"] for each in service["places"]] == [service["url"]] * TOPOLOGY.partitions


async def test_its_stream_is_for_those_who_may_see_the_cluster(tmp_path: Path) -> None:
    service, issuer = TOPOLOGY.service, DevIssuer(tmp_path)
    api = worker(issuer_settings(tmp_path, service))
    assert (await first_picture(api))[0] == 401
    assert (await first_picture(api, issuer.token(service, [f"{service}:read"], "ann", 60)))[0] == 403
    status, picture = await first_picture(api, issuer.token(service, ["operations:read"], "olga", 60))
    assert (status, picture["with_token"]) == (200, True)


async def test_its_stream_ends_with_the_token_and_with_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, issuer = TOPOLOGY.service, DevIssuer(tmp_path)
    api, now = worker(issuer_settings(tmp_path, service)), time.time()
    monkeypatch.setattr("shared.http.changes.brokers_clock", SimpleNamespace(now=lambda: now))
    long, short = (issuer.token(service, ["operations:read"], "olga", exp=now + left_s) for left_s in (3600.0, 0.3))
    assert (await first_picture(api, short, stays=True))[0] == 200
    api.state.closing.set()
    assert (await first_picture(api, long, stays=True))[0] == 200


async def test_its_files_are_open_and_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with client_of(worker(issuer_settings(tmp_path, TOPOLOGY.service))) as http:
        assert (await http.get("/ui")).headers["location"] == "ui/"
        for path, kind in (("/ui/", "text/html"), ("/ui/static/console.js", "text/javascript")):
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, kind)
            assert answer.headers["content-security-policy"].startswith("default-src 'self';")
            assert answer.headers["x-frame-options"] == "DENY"
        for path in ("/ui/static/../own.py", "/ui/static/%2e%2e/own.py", "/ui/static/..%2fown.py", "/ui/nothing"):
            assert (await http.get(path)).status_code == 404
        assert (await http.get("/cluster")).headers["content-security-policy"].startswith("default-src 'none';")


@pytest.mark.parametrize(
    ("env", "ui", "there"), [("dev", "auto", 200), ("dev", "off", 404), ("prod", "auto", 404), ("prod", "on", 200)]
)
async def test_it_is_off_in_prod_unless_a_setting_says_so(env: str, ui: str, there: int, tmp_path: Path) -> None:
    settings = issuer_settings(tmp_path, TOPOLOGY.service).model_copy(update={"env": env, "ui": ui})
    async with client_of(worker(settings, lambda *_: [])) as http:  # accounts would need a database of keys
        assert [(await http.get(path)).status_code for path in ("/ui/", "/ui/static/console.js")] == [there, there]
        assert (await http.get("/ui/stream")).status_code == (401 if there == 200 else 404)
