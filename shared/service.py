"""Assembles a service's worker: its pure parts, the engine that runs them, and the HTTP side."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from contextlib import suppress

from shared.engine.processors import Processor
from shared.group.app import WorkerApp
from shared.group.node import WorkerNode
from shared.http.api import Routes, create_api
from shared.http.server import HttpServer
from shared.runtime import failpoints
from shared.runtime.logs import configure_logging
from shared.runtime.settings import load_settings
from shared.topology.topics import Topology

OPEN_FILES = 65_536
"""As many as the system lets a process ask for: a store has up to 64, and there is one of each partition of a table."""


def service_app(topology: Topology, processors: Sequence[Processor], routes: Routes) -> WorkerApp:
    """The Faust app of one worker, with the settings from this process's environment."""
    settings = load_settings()
    configure_logging(settings)
    failpoints.arm(settings.failpoint)
    _raise_limit_of_open_files()

    def http(app: WorkerApp) -> HttpServer:
        api = create_api(WorkerNode(app), routes)
        return HttpServer(
            api,
            settings.http_host,
            settings.http_port,
            settings.trusted_proxies,
            settings.stalled_after_s,
            settings.max_connections,
        )

    return WorkerApp(topology, processors, settings, http)


def _raise_limit_of_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has another limit, and does not tell it here
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
