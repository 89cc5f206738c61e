"""One Compose project per module: built and started by its first test, removed with its volumes after the last."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.compose.project import ROOT, Project

FIRST_PORT = 28_100
FIX = "fix: install Docker with `docker compose` and start it, or leave out --compose"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/compose" in item.path.as_posix():
            item.add_marker(pytest.mark.compose)
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def engine() -> None:
    """Fails the test when no Docker engine answers or the client has no `compose`: they run only if asked for."""
    for command in (["docker", "info", "--format", "{{.ServerVersion}}"], ["docker", "compose", "version"]):
        try:
            asked = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.fail(f"no Docker engine answers: {error}; {FIX}")
        if asked.returncode:
            said = (asked.stderr or asked.stdout).strip().splitlines()
            pytest.fail(
                f"no Docker engine answers: {' '.join(command)}: {said[-1] if said else asked.returncode}; {FIX}"
            )


Projects = Callable[..., Project]


@pytest.fixture(scope="module")
def project(engine: None) -> Iterator[Projects]:
    """Makes a project from Compose files; it is taken down at the end of the module."""
    with ExitStack() as stack:

        def make(name: str, *files: str, checkout: Path = ROOT, **environment: str) -> Project:
            made = Project(name, files, os.environ | ports() | environment, checkout)
            stack.callback(made.run, "--profile", "*", "down", "--volumes", "--remove-orphans")
            made.run("--profile", "*", "build")
            return made

        yield make


def ports() -> dict[str, str]:
    """Host ports that a project of this checkout does not use by default."""
    services = ("ACCOUNTS", "INVENTORY", "ORDERS", "SALES", "PICKUPS")
    ranges = {f"{name}_PORTS": _range(FIRST_PORT + 10 * place) for place, name in enumerate(services)}
    others = ("BROKER_PORT", "BROKER_2_PORT", "BROKER_3_PORT", "SECOND_PORT", "PROMETHEUS_PORT")
    return ranges | {name: str(FIRST_PORT - 10 + place) for place, name in enumerate(others)}


def _range(first: int) -> str:
    return f"{first}-{first + 9}"
