"""A service of its own for each test: of the two that the test's module names as KIND, the one that it declares."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.dev.stack import Stack
from shared.dev.worker import Worker, faust_command
from shared.operations.provision import provision
from tests.versions.operator import Operator


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    service, _ = request.module.KIND
    return f"{service.__name__}-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:6]


@pytest.fixture
def operator(name: str, request: pytest.FixtureRequest, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Operator:
    service, other = request.module.KIND
    for setting, value in stack.settings.environment().items():
        monkeypatch.setenv(setting, value)
    provision([service(1, name).topology, other(name)], stack.settings)
    return Operator(name, monkeypatch, service)


@pytest.fixture
def worker(name: str, stack: Stack, operator: Operator, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(version: int, instance: str, **settings: object) -> Worker:
        command = ["env", f"TALLIES_VERSION={version}", f"TALLIES_NAME={name}", *faust_command("versions", "tests")]
        one = Worker(name, instance, stack.settings, tmp_path / f"{instance}.log", lambda _: command)
        started.append(one)
        one.change(**settings)
        one.spawn()
        return one

    yield start
    for one in started:
        one.kill()
