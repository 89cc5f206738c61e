"""`console` and `watch`: the whole system on one page, and in a terminal."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from getpass import getuser
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from shared.console.app import create_console, serve
from shared.console.picture import Check, Declared, Version, Versions
from shared.console.watch import Watcher, Workers, tail_of
from shared.dev import up as local_stack
from shared.dev.asyncapi import document_of
from shared.dev.console_process import page_port, url_at
from shared.dev.doctor import Diagnosis
from shared.dev.processes import send
from shared.dev.stages import StageFailed
from shared.domain.errors import OnefoldError
from shared.kafka.brokers import Brokers
from shared.runtime.checkout import CHECKOUT, found_services
from shared.runtime.child import Child
from shared.runtime.declared import declared
from shared.runtime.settings import operators_token
from shared.topology.topics import Topology

_ONCE = "`python3 dev.py status`, in an image `python -m shared.dev.cli status`, prints the same once"


class Checks:
    """Runs `parity`, of one service at a time: Spark takes every core. It ends with this process."""

    def __init__(
        self, logs: Path, command: Sequence[str] = (sys.executable, str(CHECKOUT / "dev.py"), "parity")
    ) -> None:
        self._logs = logs
        self._command = command
        self._begun: dict[str, tuple[Child, float]] = {}
        self._beginning = Lock()  # each request has a thread of its own

    def begin(self, service: str) -> None:
        """Raises LookupError while one runs."""
        with self._beginning:
            if running := [name for name, (child, _) in self._begun.items() if child.exit_code is None]:
                raise LookupError(f"the check of {running[0]} runs: one at a time")
            if service in self._begun:
                self._begun[service][0].kill()  # it has ended; this closes its pipe
            self._log(service).unlink(missing_ok=True)
            self._begun[service] = Child([*self._command, service], self._log(service), CHECKOUT), time.time()

    def seen(self) -> list[Check]:
        return [
            Check(service=name, at=at, said=self._said(name), exit_code=child.exit_code)
            for name, (child, at) in list(self._begun.items())  # another thread may begin one meanwhile
        ]

    def _said(self, service: str) -> str:
        try:
            lines = [line for line in self._log(service).read_text(errors="replace").splitlines() if line.strip()]
        except FileNotFoundError:
            return "its log is gone"
        return lines[-1].strip() if lines else "it starts"

    def _log(self, service: str) -> Path:
        """One of this process: another page beside the same `up` has its own."""
        return self._logs / f"parity-{service}-{os.getpid()}.log"


class WorkersOfUp:
    """Kills the workers that `up` runs, which starts them again, has it add others, and checks what they keep."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.checks = Checks(root / "logs")

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

    def check(self, service: str) -> None:
        if service not in found_services():
            raise LookupError(f"no service is called {service}")
        self.checks.begin(service)


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
    watcher = _watcher(topologies, workers, diagnose, bootstrap, controls, user() if mends else None)
    print(f"console  {url_at(chosen)}", flush=True)
    asyncapi = partial(document_of, *(each.service for each in topologies))
    serve(create_console(watcher, controls, asyncapi), chosen)


def show_in_terminal(
    topologies: Sequence[Topology], workers: Workers, diagnose: Callable[[], Diagnosis], bootstrap: str
) -> None:
    """What the page shows, until `q`. Raises StageFailed where there is no terminal, or nothing that draws in one."""
    if not sys.stdout.isatty():
        raise StageFailed("`watch` draws in a terminal", _ONCE)
    try:
        from shared.console.terminal import Terminal
    except ModuleNotFoundError as missing:
        raise StageFailed(f"`watch` is for developers, and no image has what it draws with: {missing}", _ONCE) from None

    async def watch() -> None:
        watcher = _watcher(topologies, workers, diagnose, bootstrap)
        try:
            await Terminal(watcher.look).run_async()
        finally:
            await watcher.close()

    asyncio.run(watch())


def _watcher(
    topologies: Sequence[Topology],
    workers: Workers,
    diagnose: Callable[[], Diagnosis],
    bootstrap: str,
    controls: WorkersOfUp | None = None,
    operator: str | None = None,
) -> Watcher:
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each question of the doctor
    services = [_declared(each.service) for each in topologies]
    return Watcher(
        services,
        workers,
        lambda: findings_of(diagnose),
        tail_of(topologies, bootstrap),
        operators_token(),
        controls is not None,
        operator,
        partial(versions_of, topologies, bootstrap),
        controls.checks.seen if controls else tuple,
    )


def versions_of(topologies: Sequence[Topology], bootstrap: str) -> Versions:
    """Of each service: the one of this checkout, and each other that runs or has positions."""
    brokers = Brokers(bootstrap)
    return {each.service: _told(each, brokers) for each in topologies}


def _told(topology: Topology, brokers: Brokers) -> Sequence[Version] | str:
    try:
        return list(_versions(topology, brokers))
    except OnefoldError as failure:
        return str(failure)


def _versions(topology: Topology, brokers: Brokers) -> Iterator[Version]:
    for number in range(1, topology.version + 2):
        group = replace(topology, version=number).group
        workers, begun = len(brokers.members(group)), bool(brokers.positions(group))
        is_declared = number == topology.version
        if is_declared or workers or begun:
            yield Version(version=number, group=group, workers=workers, begun=begun, declared=is_declared)


def _declared(name: str) -> Declared:
    app = import_module(f"services.{name}.app").app
    return Declared.of(app.topology, app.processors, declared(f"services.{name}", "service", "SERVICE").reads)


def user() -> str:
    """Who runs this process."""
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
