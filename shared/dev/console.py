"""`console` and `watch`: the whole system on one page, and in a terminal."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from getpass import getuser
from importlib import import_module
from pathlib import Path
from typing import Any

from shared.console.app import create_console, serve
from shared.console.picture import Declared
from shared.console.watch import Watcher, Workers, tail_of
from shared.dev import up as local_stack
from shared.dev.asking import operators_token
from shared.dev.console_process import page_port, url_at
from shared.dev.doctor import Diagnosis
from shared.dev.processes import send
from shared.dev.stages import StageFailed
from shared.domain.errors import OnefoldError
from shared.runtime.declared import declared
from shared.topology.topics import Topology


class WorkersOfUp:
    """Kills the workers that `up` runs, which starts them again, and has it add others."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def kill(self, url: str) -> None:
        found = local_stack.running(self._root)
        pids = {each["url"]: each["pid"] for some in found.services.values() for each in some} if found else {}
        if found is None or url not in pids:
            raise LookupError(f"`up` runs no worker at {url}")
        worker = next((each for each in found.children if each.pid == pids[url]), None)
        if worker is None or not worker.running:
            raise LookupError(f"the worker at {url} does not run; `up` starts it again")
        send(worker, signal.SIGKILL)

    def add(self, service: str) -> None:
        try:
            local_stack.add_worker(self._root, service)
        except StageFailed as failure:
            raise LookupError(f"{failure.problem}; fix: {failure.fix}") from None


def show(
    topologies: Sequence[Topology],
    workers: Workers,
    diagnose: Callable[[], Diagnosis],
    bootstrap: str,
    port: int | None,
    controls: WorkersOfUp | None,
    mends: bool,
) -> None:
    """Serves the page until Ctrl-C. diagnose: blocking. controls: None where it neither kills nor adds workers.

    mends: whether it may retry, discard and correct dead letters, in the name of this process's user.
    """
    chosen = port or page_port()
    watcher = _watcher(topologies, workers, diagnose, bootstrap, controls is not None, _user() if mends else None)
    print(f"console  {url_at(chosen)}", flush=True)
    serve(create_console(watcher, controls), chosen)


def show_in_terminal(
    topologies: Sequence[Topology], workers: Workers, diagnose: Callable[[], Diagnosis], bootstrap: str
) -> None:
    """What the page shows, until `q`. Raises StageFailed where there is no terminal."""
    from shared.console.terminal import Terminal  # with textual, which is for developers: no image has it

    if not sys.stdout.isatty():
        raise StageFailed("`watch` draws in a terminal", "`python3 dev.py status` prints the same once")
    Terminal(_watcher(topologies, workers, diagnose, bootstrap).look).run()


def _watcher(
    topologies: Sequence[Topology],
    workers: Workers,
    diagnose: Callable[[], Diagnosis],
    bootstrap: str,
    acts: bool = False,
    operator: str | None = None,
) -> Watcher:
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each question of the doctor
    services = [_declared(each.service) for each in topologies]
    tail = tail_of(topologies, bootstrap)
    return Watcher(services, workers, lambda: findings_of(diagnose), tail, operators_token(), acts, operator)


def _declared(name: str) -> Declared:
    app = import_module(f"services.{name}.app").app
    return Declared.of(app.topology, app.processors, declared(f"services.{name}", "service", "SERVICE").reads)


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"user {os.getuid()}"


def findings_of(diagnose: Callable[[], Diagnosis]) -> Mapping[str, Any]:
    """What `doctor --json` prints, or the `problem` that keeps it from looking."""
    try:
        found: Mapping[str, Any] = json.loads(diagnose().as_json())
        return found
    except (OnefoldError, StageFailed, OSError) as failure:
        return {"problem": str(failure)}
