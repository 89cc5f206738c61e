"""What is here: the services of this checkout, and the brokers and workers of its `up`, for any verb."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from shared.dev import stages
from shared.dev import up as local_stack
from shared.dev.stages import StageFailed
from shared.operations.provision import load_topologies
from shared.runtime.checkout import found_services
from shared.runtime.declared import declared
from shared.topology.declaration import Service
from shared.topology.topics import Topology

OF_UP = (
    "ONEFOLD_BOOTSTRAP",
    "ONEFOLD_REPLICATION",
    "ONEFOLD_MIN_ISR",
    "ONEFOLD_DATA_DIR",
    "ONEFOLD_PERSON_KEYS",
)
WorkerUrls = Annotated[
    list[str] | None,
    typer.Option(help="A worker of a service, as SERVICE=URL; can be repeated. By default those of `up`."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]


def services() -> list[str]:
    return found_services()


def topologies() -> list[Topology]:
    return load_topologies()


def check_known(service: str) -> None:
    """Raises StageFailed."""
    stages.check_known(service, services())


def declaration(service: str) -> Service:
    """Of a service that is known. Raises Undeclared."""
    found: Service = declared(f"services.{service}", "service", "SERVICE")
    return found


def join_up() -> local_stack.Record | None:
    """This checkout's `up`, if it runs and the environment names no brokers; this process then uses those of `up`."""
    if "ONEFOLD_BOOTSTRAP" in os.environ:
        return None
    found = local_stack.running(local_stack.ROOT)
    if found is not None:
        os.environ.update({name: found.settings[name] for name in OF_UP})
    return found


def up_now() -> local_stack.Record | None:
    """None also while it starts."""
    with suppress(StageFailed):
        return local_stack.running(local_stack.ROOT)
    return None


def workers_of(found: local_stack.Record | None) -> dict[str, list[str]]:
    """The URLs of those that `up` runs, by service."""
    return {name: [str(each["url"]) for each in some] for name, some in found.services.items()} if found else {}


def seen_workers(url: Sequence[str] | None) -> tuple[list[Topology], dict[str, list[str]]]:
    """All services of this checkout, and the URLs of workers: those of `up`, and those named."""
    workers = workers_of(join_up())
    found = topologies()
    return found, workers | named_workers(url or (), [each.service for each in found])


def named_workers(urls: Sequence[str], services: Sequence[str]) -> dict[str, list[str]]:
    """URLs by service, from SERVICE=URL each. Raises StageFailed for an unknown service or a missing URL."""
    workers: dict[str, list[str]] = {}
    for named in urls:
        service, _, url = named.partition("=")
        if service not in services or not url:
            raise StageFailed(f"--url {named} names no service", f"say SERVICE=URL, of one of: {', '.join(services)}")
        workers.setdefault(service, []).append(url.rstrip("/"))
    return workers
