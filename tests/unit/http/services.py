"""Every service of this checkout, and the tests' own accounts, over HTTP, without a broker or a port."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from shared.dev.issuer import DevIssuer
from shared.http.api import create_api
from shared.runtime.checkout import found_services
from shared.runtime.settings import PREFIX, Settings
from shared.testing.node import MemoryNode

SERVICES = found_services()
PEER_SECRET = "a secret that these workers alone know"


def api_of(service: str, settings: Settings | None = None) -> FastAPI:
    """Its routes and processors, over tables in memory that are empty at first."""
    return _api(f"services.{service}", settings)


def own_api(settings: Settings | None = None) -> FastAPI:
    """As `api_of`, of the tests' own accounts: a checkout may have no service, or one of that name that is another."""
    return _api("tests.accounts", settings)


def _api(package: str, settings: Settings | None) -> FastAPI:
    app = import_module(f"{package}.app").app
    node = MemoryNode(app.topology, app.processors, settings)
    return create_api(node, import_module(f"{package}.api").routes)


def client_of(api: Callable[..., Coroutine[Any, Any, None]], address: str = "127.0.0.1") -> httpx.AsyncClient:
    """Asks from this address; a bug is answered with 500, as by a server."""
    transport = httpx.ASGITransport(api, raise_app_exceptions=False, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://worker")


def issuer_settings(folder: Path, service: str) -> Settings:
    """Settings of a worker that asks for tokens of the development issuer, and keeps what it keeps in the folder."""
    environment = DevIssuer(folder).environment(service)
    told = {name.removeprefix(PREFIX).lower(): text for name, text in environment.items()}
    return Settings.model_validate({**told, "data_dir": folder, "peer_secret": PEER_SECRET})
