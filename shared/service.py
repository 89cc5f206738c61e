"""Assembles a service's worker: its pure parts, the engine that runs them, and the HTTP side.

Beside the pure names of shared.domain and shared.topology, a service imports from here:

service_app    the worker of a Service, which `faust -A` runs
read_settings  settings of the service's own, from the environment
Resource       a table over HTTP, declared: list, rows, changes, commands
together       the routes of several parts
effect_routes  the Resource of a service of effects

For a route that Resource does not know:

Node           the worker that it runs in
Peers          the other workers of the service
PathId         a key in a path
UNESCAPED      marks another type of key, which is read as it is sent
Queries        answers a read from the row's owner, or from any worker that is recent enough
Reading        the parameters of a read
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from contextlib import suppress

from shared.console.own import page_of
from shared.console.picture import Declared
from shared.engine.processors import Processor
from shared.engine.wiring import processors_of
from shared.group.app import WorkerApp
from shared.group.node import WorkerNode
from shared.http.api import Routes, create_api, together
from shared.http.effects import effect_routes
from shared.http.node import Node
from shared.http.paths import UNESCAPED, PathId
from shared.http.peers import Peers
from shared.http.queries import Queries, Reading
from shared.http.resource import Resource
from shared.http.server import HttpServer
from shared.runtime import failpoints
from shared.runtime.logs import configure_logging
from shared.runtime.settings import load_settings, read_settings
from shared.topology.declaration import Service
from shared.topology.topics import Topic, Topology

__all__ = [
    "UNESCAPED",
    "Node",
    "PathId",
    "Peers",
    "Queries",
    "Reading",
    "Resource",
    "effect_routes",
    "read_settings",
    "service_app",
    "together",
]

OPEN_FILES = 65_536
"""As many as the system lets a process ask for: a store has up to 64, and there is one of each partition of a table."""


def service_app(service: Service, routes: Routes) -> WorkerApp:
    """The Faust app of one worker, with the settings from this process's environment.

    service  what it runs.
    routes   what it serves: a Resource, or several, put `together`.

    Raises SettingsError, naming every variable that is wrong, and ValueError for parts that do not fit together.
    """
    return worker_app(service.topology, processors_of(service), routes, service.reads)


def worker_app(
    topology: Topology, processors: Sequence[Processor], routes: Routes, reads: Sequence[Topic] = ()
) -> WorkerApp:
    """The same of processors that no Service declares, as a measurement or a test may need."""
    settings = load_settings()
    configure_logging(settings)
    failpoints.arm(settings.failpoint)
    _raise_limit_of_open_files()

    def http(app: WorkerApp) -> HttpServer:
        api = create_api(WorkerNode(app), routes, page_of(Declared.of(topology, processors, reads)))
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
