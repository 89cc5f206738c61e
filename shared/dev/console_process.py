"""The page of `console` as a process beside `up`; the process itself is told, or finds, whom to ask."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared.dev.worker import free_port
from shared.runtime.checkout import CHECKOUT
from shared.runtime.child import Child

_PORTS = range(4400, 4500)
_GRACE_S = 5


def page_port() -> int:
    return free_port(_PORTS)


def url_at(port: int) -> str:
    return f"http://127.0.0.1:{port}"


class ConsoleProcess:
    """The page as a child process, which ends with its parent."""

    def __init__(
        self,
        log: Path,
        environment: Mapping[str, str] | None = None,
        workers: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """environment: of the process, over this one's. workers: URLs to name; without any it looks for those of
        `up`.
        """
        port = page_port()
        self.url = url_at(port)
        named = [f"--url={service}={url}" for service, urls in (workers or {}).items() for url in urls]
        command = [sys.executable, "-P", "-m", "shared.dev.cli", "console", f"--port={port}", *named]
        log.parent.mkdir(parents=True, exist_ok=True)
        own = {name: value for name, value in os.environ.items() if name != "ONEFOLD_BOOTSTRAP"}  # `up` says where
        self._process = Child(command, log, CHECKOUT, {**own, **(environment or {})}, grace_s=_GRACE_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.kill()
