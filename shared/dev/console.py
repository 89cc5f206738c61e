"""`console`: the whole system on one page."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shared.console.app import create_console, serve
from shared.console.picture import Declared
from shared.console.watch import Watcher, Workers
from shared.dev.asking import operators_token
from shared.dev.asyncapi import Json, document_of
from shared.dev.console_process import page_port, url_at
from shared.dev.doctor import Diagnosis
from shared.dev.stages import StageFailed
from shared.domain.errors import OnefoldError
from shared.topology.topics import Topology


def show(topologies: Sequence[Topology], workers: Workers, diagnose: Callable[[], Diagnosis], port: int | None) -> None:
    """Serves the page until Ctrl-C. diagnose: blocking."""
    chosen = port or page_port()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each question of the doctor
    declared = [declared_in(document_of(each.service), each) for each in topologies]
    watcher = Watcher(declared, workers, lambda: findings_of(diagnose), operators_token())
    print(f"console  {url_at(chosen)}", flush=True)
    serve(create_console(watcher), chosen)


def declared_in(document: Json, topology: Topology) -> Declared:
    """A service, with the topics that AsyncAPI's document of it names."""
    operations = [each.split(" ", 1) for each in document["operations"]]
    return Declared(
        name=topology.service,
        group=topology.group,
        version=topology.version,
        partitions=topology.partitions,
        reads=tuple(topic for action, topic in operations if action == "receive"),
        sends=tuple(topic for action, topic in operations if action == "send"),
    )


def findings_of(diagnose: Callable[[], Diagnosis]) -> Mapping[str, Any]:
    """What `doctor --json` prints, or the `problem` that keeps it from looking."""
    try:
        found: Mapping[str, Any] = json.loads(diagnose().as_json())
        return found
    except (OnefoldError, StageFailed, OSError) as failure:
        return {"problem": str(failure)}
