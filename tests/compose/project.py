"""One Compose project, driven by `docker compose`, with ports and volumes of its own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.waiting import Deadline

ROOT = Path(__file__).parents[2]
DEADLINE_S = 600.0
_PAUSE_S = 1.0
_SHOWN_LINES = 40

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Container:
    """One container as `docker inspect` shows it."""

    id: str
    facts: Mapping[str, Any]

    @property
    def service(self) -> str:
        return str(self.facts["Config"]["Labels"]["com.docker.compose.service"])

    @property
    def index(self) -> int:
        return int(self.facts["Config"]["Labels"]["com.docker.compose.container-number"])

    @property
    def hostname(self) -> str:
        return str(self.facts["Config"]["Hostname"])

    @property
    def state(self) -> str:
        """healthy, unhealthy, starting or exited; running for a container without a healthcheck."""
        state = self.facts["State"]
        return str(state["Health"]["Status"] if state["Status"] == "running" and "Health" in state else state["Status"])

    @property
    def exit_code(self) -> int:
        return int(self.facts["State"]["ExitCode"])

    @property
    def host_ips(self) -> set[str]:
        bindings = self.facts["HostConfig"]["PortBindings"] or {}
        return {binding["HostIp"] for published in bindings.values() for binding in published}

    @property
    def url(self) -> str:
        """The URL of its HTTP port on this machine."""
        (binding,) = self.facts["NetworkSettings"]["Ports"]["8000/tcp"]
        return f"http://{binding['HostIp']}:{binding['HostPort']}"


class Project:
    """`docker compose` with these files of a checkout; `environment` names its host ports."""

    def __init__(self, name: str, files: Sequence[str], environment: Mapping[str, str], checkout: Path) -> None:
        self._command = [
            "docker",
            "compose",
            "-p",
            name,
            *(part for file in files for part in ("-f", str(checkout / file))),
        ]
        self._environment = environment
        self._checkout = checkout

    def run(self, *arguments: str, deadline_s: float = DEADLINE_S) -> str:
        """What the command printed. Raises AssertionError with the last lines when it fails."""
        done = subprocess.run(
            [*self._command, *arguments],
            env=self._environment,
            cwd=self._checkout,
            capture_output=True,
            text=True,
            timeout=deadline_s,
        )
        said = (done.stdout + done.stderr).splitlines()[-_SHOWN_LINES:]
        assert done.returncode == 0, "\n".join([f"compose {' '.join(arguments)}: {done.returncode}", *said])
        return done.stdout

    def up(self, *arguments: str) -> None:
        """Returns when every container is healthy. Raises AssertionError with the logs when one is not."""
        self._with_logs("up", "--detach", "--wait", *arguments)

    @contextmanager
    def watched(self, *services: str) -> Iterator[None]:
        """For the duration of the block, edits of the checkout reach these services."""
        command = [*self._command, "watch", "--no-up", *services]
        with subprocess.Popen(
            command,
            env=self._environment,
            cwd=self._checkout,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as watch:
            assert watch.stdout
            try:
                said = list(takewhile(lambda line: "Watch enabled" not in line, watch.stdout))
                with suppress(subprocess.TimeoutExpired):
                    raise AssertionError(f"`watch` ended with {watch.wait(_PAUSE_S)}: {''.join(said)}")
                yield
            finally:
                watch.terminate()

    def config(self) -> dict[str, Any]:
        """The Compose files, merged and resolved."""
        config: dict[str, Any] = json.loads(self.run("config", "--format", "json"))
        return config

    def containers(self, service: str | None = None) -> list[Container]:
        """Sorted by service and index, including exited containers."""
        ids = self.run("ps", "--all", "--quiet", *([service] if service else [])).split()
        if not ids:
            return []
        facts = json.loads(subprocess.run(["docker", "inspect", *ids], capture_output=True, check=True).stdout)
        found = [Container(each["Id"], each) for each in facts]
        return sorted(found, key=lambda container: (container.service, container.index))

    def in_container(self, service: str, script: str, index: int = 1) -> str:
        """What a shell script prints in the container; its exit code is ignored."""
        command = [*self._command, "exec", "--no-TTY", "--index", str(index), service, "sh", "-c", script]
        done = subprocess.run(
            command, env=self._environment, cwd=self._checkout, capture_output=True, text=True, timeout=120
        )
        return done.stdout.strip()

    def demo(self, purchases: int) -> str:
        """Sends this many purchases, those of earlier calls again, and returns the verdict."""
        return self._with_logs("run", "--rm", "demo", "--purchases", str(purchases)).splitlines()[-1]

    def _with_logs(self, *arguments: str) -> str:
        try:
            return self.run(*arguments)
        except AssertionError as failure:
            lines = self.run("logs", "--tail", "300").splitlines()
            told = [line for line in lines if '"level": "info"' not in line]
            raise AssertionError("\n".join([str(failure), *told])) from failure


def get(url: str) -> dict[str, Any]:
    """The body of a 200. Raises httpx.HTTPError."""
    found: dict[str, Any] = httpx.get(url, timeout=10.0).raise_for_status().json()
    return found


def eventually(look: Callable[[], Found], good: Callable[[Found], bool], deadline_s: float = 180.0) -> Found:
    """The first value found that is good; raises Late with the last one at the deadline."""
    deadline = Deadline(deadline_s)
    while True:
        try:
            found: Found | httpx.HTTPError = look()
        except httpx.HTTPError as error:
            found = error
        if not isinstance(found, httpx.HTTPError) and good(found):
            return found
        deadline.check(found)
        time.sleep(_PAUSE_S)
