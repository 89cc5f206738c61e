"""Stacks of their own for the faults, and a seed for every run: one in the short tier, many in the long one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.accounts.topology import TOPOLOGY
from shared.dev.stack import Stack
from shared.dev.worker import CHECKOUT, faust_command
from shared.settings import Settings
from tests.conftest import SHORTEST_SESSION_S
from tests.faults.harness import SEEN, listed, new_seed, runs

LONG_REPEATS = 20
SETTINGS = Settings(session_timeout_s=SHORTEST_SESSION_S, log_format="json")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first = new_seed()
        repeats = [pytest.param(first + number, marks=pytest.mark.long) for number in range(1, LONG_REPEATS)]
        metafunc.parametrize("seed", [pytest.param(first), *repeats])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if SEEN:
        terminalreporter.write_line(f"{listed(SEEN)}: exact")


@pytest.fixture(scope="session")
def root(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Where the stacks live. What a failure leaves there is kept."""
    folder = CHECKOUT / ".onefold" / "faults" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    yield folder
    if not request.session.testsfailed:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def faulted(root: Path) -> Iterator[Stack]:
    """One broker, two workers."""
    with _stack(root / "single", brokers=1) as stack:
        yield stack


@pytest.fixture
def pair(faulted: Stack) -> Iterator[Stack]:
    """The two workers, running and sound."""
    _heal(faulted)
    yield faulted
    _heal(faulted)


def _stack(root: Path, brokers: int) -> Stack:
    return Stack(root, {TOPOLOGY.service: 2}, brokers, settings=SETTINGS, topologies=[TOPOLOGY])


def _heal(stack: Stack) -> None:
    sound = faust_command(TOPOLOGY.service)
    for worker in stack.workers[2:]:
        worker.stop()
    for worker in stack.workers[:2]:
        worker.change(failpoint=None)
        if worker.command != sound:
            worker.kill()
            worker.command = sound
        if not runs(worker):
            worker.spawn()
    for worker in stack.workers[:2]:
        worker.resume()
        worker.await_ready()
