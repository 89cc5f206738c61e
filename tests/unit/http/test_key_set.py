"""An issuer's key set by HTTP, from a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fastapi import FastAPI
from pydantic import SecretStr

from shared.dev.issuer import DevIssuer
from shared.http import auth
from shared.runtime.settings import DEV_ISSUER, Settings
from tests.unit.http.services import PEER_SECRET, client_of, own_api

pytestmark = pytest.mark.anyio


@pytest.fixture
def issuer(tmp_path: Path) -> DevIssuer:
    return DevIssuer(tmp_path)


@pytest.fixture
async def site(issuer: DevIssuer) -> AsyncIterator[TestServer]:
    async def keys(_: web.Request) -> web.Response:
        return web.json_response(text=issuer.key_set.read_text())

    async def moved(_: web.Request) -> web.Response:
        raise web.HTTPFound("/keys")

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<html>Sign in</html>", content_type="text/html")

    async def silent(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    app = web.Application()
    app.add_routes([web.get(f"/{each.__name__}", each) for each in (keys, moved, page, silent)])
    server = TestServer(app)
    async with server:
        yield server


def api_with(key_set: str) -> FastAPI:
    settings = Settings(
        auth="on",
        auth_issuer=DEV_ISSUER,
        auth_audience="accounts",
        auth_jwks=key_set,
        peer_secret=SecretStr(PEER_SECRET),
    )
    return own_api(settings)


async def status(issuer: DevIssuer, api: FastAPI) -> int:
    token = issuer.token("accounts", ["accounts:read"], "ann")
    async with client_of(api) as http:
        answer = await http.get("/accounts/ann", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code != 503 or answer.headers["retry-after"]
    return answer.status_code


async def test_a_token_is_verified_with_the_keys_at_a_url(issuer: DevIssuer, site: TestServer) -> None:
    assert await status(issuer, api_with(str(site.make_url("/keys")))) == 404


@pytest.mark.parametrize("path", ["/nothing", "/moved", "/page", "/silent"])
async def test_keys_that_are_not_answered_are_503(
    path: str, issuer: DevIssuer, site: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redirect is not followed: it may lead to whoever can answer for another host."""
    monkeypatch.setattr(auth, "FETCH_TIMEOUT_S", 0.5)
    assert await status(issuer, api_with(str(site.make_url(path)))) == 503


async def test_an_issuer_that_nobody_reaches_is_503(issuer: DevIssuer, site: TestServer) -> None:
    url = str(site.make_url("/keys"))
    await site.close()
    assert await status(issuer, api_with(url)) == 503


async def test_a_worker_reads_the_keys_before_anybody_sends_a_token(
    issuer: DevIssuer, site: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, usable = asyncio.Event(), auth._usable

    def noted(published: bytes) -> Any:
        read.set()
        return usable(published)

    monkeypatch.setattr(auth, "_usable", noted)
    issuer.key()
    api = api_with(str(site.make_url("/keys")))
    async with api.router.lifespan_context(api):
        await asyncio.wait_for(read.wait(), 30)
        await site.close()
        assert await status(issuer, api) == 404
