"""Every service of this checkout over HTTP, without a broker or a port."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from fastapi import FastAPI

from shared.dev.issuer import DevIssuer
from shared.dev.stack import found_services
from shared.http.api import create_api
from shared.settings import PREFIX, Settings
from shared.streams.processors import Processor
from shared.testing.node import MemoryNode

SERVICES = found_services()


def api_of(service: str, settings: Settings | None = None) -> FastAPI:
    """Its routes, over a worker whose tables are empty and stay so."""
    processors: list[Processor] = []
    topology = import_module(f"services.{service}.topology").TOPOLOGY
    return create_api(MemoryNode(topology, processors, settings), import_module(f"services.{service}.api").routes)


def issuer_settings(folder: Path, service: str) -> Settings:
    """Settings of a worker that asks for tokens of the development issuer."""
    environment = DevIssuer(folder).environment(service)
    return Settings.model_validate({name.removeprefix(PREFIX).lower(): text for name, text in environment.items()})
