"""One worker of a service as a child process."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from shared.dev.stages import StageFailed
from shared.runtime.checkout import CHECKOUT
from shared.runtime.child import Child
from shared.runtime.clients import trusted
from shared.runtime.settings import PREFIX, TOKEN_VARIABLE, Settings, operators_token

READY_DEADLINE_S = 180.0  # of all of a stack at once, on a busy machine; a dead one is told at once
STOP_DEADLINE_S = 15.0
_TICK_S = 0.05
_TAIL_LINES = 15
_BY_MODE = re.compile(r"^\[\^[^]]*\]: (Error: )?")  # what mode puts before an error of a service
_RAISED = re.compile(r"[\w.]+(Error|Exception|Failed|Refused): ")  # the last line of a traceback
_ROUTINE = re.compile(r'"level": "info"|\[info +\]')  # a worker that fails logs much while it stops
_HOST = "127.0.0.1"

# Below every system's ephemeral range, so that no client's socket takes a port meanwhile, and not the brokers' range.
_PORTS = range(30_000, 32_768)
# A worker, or the page, listens seconds after it is given a port, and not between two starts. So whoever is given one
# also binds the port this far away, to the end of its process, also where `worker` becomes another program: no other
# process is given it meanwhile.
_CLAIM, _CLAIM_BELOW = -13_000, 6_000  # of _PORTS, and of ports below
_given: set[int] = set()

Command = Callable[[str], Sequence[str]]


def faust_command(service: str, package: str = "services") -> list[str]:
    """The command of one worker of `service`, a folder of `package`, with the settings of its environment."""
    return app_command(f"{package}.{service}.app")


def app_command(module: str) -> list[str]:
    """The command of one worker of the app in `module`."""
    return [sys.executable, "-m", "faust", "-A", module, "worker", "--without-web", "-l", "info"]


class Kept:
    """A process of a service that keeps its name, settings and log over restarts.

    command: what its next start runs. token: whether it gets this process's bearer token.
    """

    def __init__(
        self, service: str, name: str, settings: Settings, log: Path, command: Sequence[str], *, token: bool = False
    ) -> None:
        self.service = service
        self.name = name
        self.log = log
        self.command = command
        self._settings = settings
        self._with_token = token
        self._process: Child | None = None
        self._log_start = 0  # of its present process

    @property
    def pid(self) -> int:
        """Raises ProcessLookupError when it does not run."""
        if self._process is None:
            raise ProcessLookupError(f"{self.name} does not run")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and after stop() or kill(); negative: the signal that ended it."""
        return self._process.exit_code if self._process else None

    def change(self, **settings: object) -> None:
        """Changes settings from its next start on."""
        self._settings = self._settings.model_copy(update=settings)

    def spawn(self) -> None:
        """Starts the process without waiting for it."""
        self.kill()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        if self._with_token and (token := operators_token()):
            environment[TOKEN_VARIABLE] = token
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = Child(self.command, self.log, CHECKOUT, environment | self._settings.environment())

    def cause(self) -> str:
        """What its log says since its last start of why it ended; empty if nothing."""
        return cause_in(self.log, self._log_start)

    def kill(self) -> None:
        """SIGKILL, like a machine that loses power."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> bool:
        """SIGTERM, and SIGKILL when it takes too long. Returns whether it ended without SIGKILL."""
        self.terminate()
        return self.await_end(deadline_s)

    def terminate(self) -> None:
        """SIGTERM without waiting; also ends a paused process."""
        if self._process:
            self._process.terminate()

    def await_end(self, deadline_s: float) -> bool:
        """Waits for its end, and forces it at the deadline. Returns whether it ended without SIGKILL."""
        if self._process:
            self._process.wait(deadline_s)
        unforced = not self.running and self.exit_code != -signal.SIGKILL
        self.kill()
        return unforced


class Worker(Kept):
    """A worker that keeps its name, port, stores and log over restarts."""

    def __init__(
        self, service: str, instance: str, settings: Settings, log: Path, command: Command = faust_command
    ) -> None:
        own = settings.model_copy(update={"instance": instance})
        own = own.model_copy(update={"http_port": _port_of(own.store_dir(service))})
        super().__init__(service, f"{service}-{instance}", own, log, command(service))
        self.instance = instance
        self._has_served = False

    @property
    def url(self) -> str:
        return self._settings.url

    def start(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Returns when it is ready. Raises StageFailed."""
        self.spawn()
        self.await_ready(deadline_s)

    def await_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Returns when GET /readyz answers 200. Raises StageFailed as soon as the process is dead."""
        deadline = time.monotonic() + deadline_s
        while True:
            if self.exit_code is not None:  # checked first: another process may answer at its port
                raise self._failed(f"{self.name} ended with {self.exit_code} before it was ready")
            if self.is_ready():
                break
            if time.monotonic() > deadline:
                raise self._failed(f"{self.name} is not ready after {deadline_s:.0f} s")
            time.sleep(_TICK_S)
        self._has_served = True

    def is_ready(self) -> bool:
        return is_ready(self.url)

    def terminate(self) -> None:
        """SIGTERM without waiting; also ends a paused worker."""
        if self._process:
            # SIGKILL before it was ever ready: it has nothing to hand over, and Faust can hang while it starts
            served = self._has_served or self.is_ready()
            self._process.terminate(signal.SIGTERM if served else signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _failed(self, problem: str) -> StageFailed:
        cause = self.cause()
        if cause and not self.running:
            return StageFailed(f"{problem}: {cause}", "resolve that, then run again", self.log)
        lines = self.log.read_text(errors="replace").splitlines()
        tail = ([line for line in lines if not _ROUTINE.search(line)] or lines)[-_TAIL_LINES:]
        quoted = "\n".join(f"    {line}" for line in tail)
        return StageFailed(f"{problem}; its log ends:\n{quoted}", "resolve what the log says, then run again", self.log)


def cause_in(log: Path, start: int = 0) -> str:
    """The first fatal error behind `start` in a worker's log; empty if there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    entries = list(_entries(lines))
    fatal = [each for each in entries if each.get("level") == "critical"]
    crashes = [each for each in entries if each.get("level") == "error" and "exception" in each]
    for entry in (*fatal, *crashes):
        event = _BY_MODE.sub("", str(entry.get("event")))
        return f"{event}: {entry['reason']}" if "reason" in entry else event
    return next(filter(_RAISED.match, reversed(lines)), "")  # before there is a log


def _entries(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Those lines that are of the worker's own log."""
    for line in lines:
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield entry


def is_ready(url: str) -> bool:
    """Whether the worker at `url` has its partitions, and all of their rows."""
    with suppress(httpx.HTTPError):
        answer = httpx.get(f"{url}/readyz", timeout=1.0, trust_env=False, verify=trusted())
        return answer.status_code == httpx.codes.OK
    return False


def free_port(candidates: Iterable[int] = ()) -> int:
    """The first of the candidates, or any port, that nothing on loopback listens on and no process was given."""
    for port in candidates or _not_given():
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_HOST, port))
            if _claim(port):
                return port
    raise StageFailed("no port is free", f"stop something that listens on {_HOST}")


def _claim(port: int) -> bool:
    """Whether no process was given the port; it is this one's from now on."""
    claim = socket.socket()
    try:
        claim.bind((_HOST, port + (_CLAIM if port in _PORTS else _CLAIM_BELOW)))
    except OSError:
        claim.close()
        return False
    claim.set_inheritable(True)  # by what the process becomes; Popen keeps it from children
    claim.detach()  # so that nothing closes it before the process ends
    _given.add(port)
    return True


def _port_of(store: Path) -> int:
    """The same for a store each time, where it is free: the group keeps a killed member's address until it is back."""
    usual = _PORTS[zlib.crc32(str(store.absolute()).encode()) % len(_PORTS)]
    return free_port([usual, *_not_given()])


def _not_given() -> list[int]:
    left = [port for port in _PORTS if port not in _given]
    return random.sample(left, min(len(left), 100))
