"""Assembles a service's worker: its pure parts, the engine that runs them, and the HTTP side."""

from __future__ import annotations

from collections.abc import Sequence

from shared import failpoints
from shared.http.api import Routes, create_api
from shared.http.server import HttpServer
from shared.logs import configure_logging
from shared.settings import load_settings
from shared.streams.app import WorkerApp
from shared.streams.node import WorkerNode
from shared.streams.processors import Processor
from shared.topology import Topology


def service_app(topology: Topology, processors: Sequence[Processor], routes: Routes) -> WorkerApp:
    """The Faust app of one worker, with the settings from this process's environment."""
    settings = load_settings()
    configure_logging(settings)
    failpoints.arm(settings.failpoint)

    def http(app: WorkerApp) -> HttpServer:
        api = create_api(WorkerNode(app), routes)
        return HttpServer(api, settings.http_host, settings.http_port, settings.trusted_proxies)

    return WorkerApp(topology, processors, settings, http)
