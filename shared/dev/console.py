"""`console` and `watch`: the whole system on one page, and in a terminal."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from shared.console.app import Order, create_console, serve
from shared.console.picture import Declared, Run, Verb, Version, Versions
from shared.console.watch import Watcher, Workers, tail_of
from shared.dev import up as local_stack
from shared.dev.asyncapi import document_of
from shared.dev.console_process import page_port, url_at
from shared.dev.doctor import Diagnosis
from shared.dev.processes import send, user
from shared.dev.stages import StageFailed
from shared.domain.errors import OnefoldError
from shared.kafka.brokers import Brokers
from shared.runtime.checkout import CHECKOUT, found_services
from shared.runtime.child import Child
from shared.runtime.declared import declared
from shared.runtime.settings import operators_token
from shared.topology.topics import Topology

_ONCE = "`python3 dev.py status`, in an image `python -m shared.dev.cli status`, prints the same once"


_SAID = 30  # lines
_DEV = (sys.executable, str(CHECKOUT / "dev.py"))
_CLI = (sys.executable, "-P", "-m", "shared.dev.cli")  # all there is in an image
_REBUILD = """
"$0" "$1" stop "$2" && "$0" "$1" rebuild "$2"
rebuilt=$?
"$0" "$1" start "$2" && exit $rebuilt
"""  # nobody may go on meanwhile; what fails leaves nothing stopped
_BESIDE_UP: tuple[Verb, ...] = ("parity", "rebuild")  # of its workers, and by Spark
_ANYWHERE: tuple[Verb, ...] = ("deploy", "compare", "switch", "rollback", "retire")
_WITH_REASON: tuple[Verb, ...] = ("deploy", "switch", "rollback", "retire")


def command_of(order: Order) -> list[str]:
    """Raises LookupError."""
    verb, service = order.verb, order.service
    if service not in found_services():  # nor is it an option
        raise LookupError(f"no service is called {service}")
    if verb == "retire" and order.version is None:
        raise LookupError("which version? fix: name one")
    if verb == "rebuild":
        return ["/bin/sh", "-c", _REBUILD, *_DEV, service]
    retired = [str(order.version), "--yes"] if verb == "retire" else []
    why = [f"--reason={order.reason}"] if verb in _WITH_REASON else []
    return [*(_DEV if verb in _BESIDE_UP else _CLI), verb, service, *retired, *why]


class Runs:
    """Runs commands for services, one at a time: Spark takes every core, and each finds what the one before has done.
    It ends with this process.
    """

    def __init__(self, logs: Path, verbs: Sequence[Verb], command: Callable[[Order], list[str]] = command_of) -> None:
        """verbs: the only ones that it runs."""
        self._logs = logs
        self.verbs = verbs
        self._command = command
        self._begun: dict[str, tuple[Child, Verb, float]] = {}
        self._beginning = Lock()  # each request has a thread of its own

    def begin(self, order: Order) -> None:
        """Raises LookupError where that may not be run, and while one runs."""
        if order.verb not in self.verbs:
            raise LookupError(f"no {order.verb} is run here")
        command, service = self._command(order), order.service
        with self._beginning:
            for name, (child, verb, _) in self._begun.items():
                if child.exit_code is None:
                    raise LookupError(f"{verb} of {name} runs: one at a time")
            if service in self._begun:
                self._begun[service][0].kill()  # it has ended; this closes its pipe
            self._log(service).unlink(missing_ok=True)
            self._begun[service] = Child(command, self._log(service), CHECKOUT), order.verb, time.time()

    def seen(self) -> list[Run]:
        return [
            Run(service=name, verb=verb, at=at, said=self._said(name), exit_code=child.exit_code)
            for name, (child, verb, at) in list(self._begun.items())  # another thread may begin one meanwhile
        ]

    def _said(self, service: str) -> list[str]:
        try:
            text = self._log(service).read_text(errors="replace")
        except FileNotFoundError:
            return ["its log is gone"]
        return [line.strip() for line in text.splitlines() if line.strip()][-_SAID:]

    def _log(self, service: str) -> Path:
        """One of this process: another page beside the same `up` has its own."""
        return self._logs / f"run-{service}-{os.getpid()}.log"


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

    mends: whether it may retry, discard and correct dead letters, and deploy, switch and retire versions, in the name
    of this process's user.
    """
    chosen = port or page_port()
    asyncapi = partial(document_of, *(each.service for each in topologies))
    with tempfile.TemporaryDirectory() as logs:
        runs = Runs(Path(logs), (*(_BESIDE_UP if controls else ()), *(_ANYWHERE if mends else ())))
        watcher = _watcher(topologies, workers, diagnose, bootstrap, controls, user() if mends else None, runs)
        print(f"console  {url_at(chosen)}", flush=True)
        serve(create_console(watcher, controls, asyncapi, runs.begin if runs.verbs else None), chosen)


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
    runs: Runs | None = None,
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
        runs.verbs if runs else (),
        runs.seen if runs else tuple,
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


def findings_of(diagnose: Callable[[], Diagnosis]) -> Mapping[str, Any]:
    """What `doctor --json` prints, or the `problem` that keeps it from looking."""
    try:
        found: Mapping[str, Any] = json.loads(diagnose().as_json())
        return found
    except (OnefoldError, StageFailed, OSError) as failure:
        return {"problem": str(failure)}
