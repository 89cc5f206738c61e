"""Stacks of their own for the scenarios, and their seeds: one in the short tier, many in the long one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from shared.dev.embedded import EmbeddedKafka
from shared.dev.stack import Stack
from shared.dev.worker import free_port
from shared.runtime.checkout import CHECKOUT
from tests.conftest import accounts_command, accounts_stack
from tests.faults.harness import runs
from tests.faults.proxy import Proxy
from tests.faults.run import new_seed

SHORT_SESSION_S = 1.5  # many scenarios wait for a take-over
LONG_REPEATS = 20
LEAD_AGAIN = {"leader.imbalance.check.interval.seconds": 5, "leader.imbalance.per.broker.percentage": 0}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first = new_seed()
        again = [
            pytest.param(seed, id=f"seed{seed}", marks=pytest.mark.long)
            for seed in range(first + 1, first + LONG_REPEATS)
        ]
        metafunc.parametrize("seed", [pytest.param(first, id=f"seed{first}"), *again])


@pytest.fixture(scope="package")
def root(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder of the stacks. It is kept after a failure."""
    folder = CHECKOUT / ".onefold" / "faults" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    yield folder
    if not request.session.testsfailed:
        shutil.rmtree(folder)


@pytest.fixture(scope="package")
def faulted(root: Path) -> Iterator[Stack]:
    """One broker, two workers."""
    with accounts_stack(root / "single", workers=2, session_timeout_s=SHORT_SESSION_S) as stack:
        yield stack


@pytest.fixture
def pair(faulted: Stack) -> Iterator[Stack]:
    """The two workers, running and sound."""
    _heal(faulted)
    yield faulted
    _heal(faulted)


@pytest.fixture(scope="module")
def three(root: Path) -> Iterator[Stack]:
    stack = accounts_stack(root / "three", workers=2, brokers=3)
    stack.kafka = EmbeddedKafka(stack.root / "kafka", stack.logs, 3, LEAD_AGAIN)
    with stack:
        yield stack


@pytest.fixture
def cluster(three: Stack) -> Iterator[Stack]:
    """Three brokers, two workers, all running and sound."""
    _heal(three)
    yield three
    _heal(three)


class Cut(NamedTuple):
    """A stack whose workers reach the broker through the proxy only; load and readers reach it directly."""

    stack: Stack
    proxy: Proxy


class TwoDoors(EmbeddedKafka):
    """A broker with a second listener, of which it tells its clients another address."""

    def __init__(self, data_dir: Path, log_dir: Path, listens: str, told: str) -> None:
        super().__init__(data_dir, log_dir)
        self._listens = listens
        self._told = told

    def _configuration(self, number: int, client: int, controller: int, voters: str) -> dict[str, str | int]:
        usual = super()._configuration(number, client, controller, voters)
        return {
            **usual,
            "listeners": f"{usual['listeners']},WORKERS://{self._listens}",
            "advertised.listeners": f"CLIENT://127.0.0.1:{client},WORKERS://{self._told}",
            "listener.security.protocol.map": f"{usual['listener.security.protocol.map']},WORKERS:PLAINTEXT",
        }


@pytest.fixture(scope="module")
def proxied(root: Path) -> Iterator[Cut]:
    stack = accounts_stack(root / "proxied", workers=2)
    door = f"127.0.0.1:{free_port()}"
    with Proxy(lambda: door) as proxy:
        stack.kafka = TwoDoors(stack.root / "kafka", stack.logs, listens=door, told=proxy.address)
        with stack:
            for worker in stack.workers:
                worker.stop()
                worker.change(bootstrap=proxy.address)
                worker.start()
            yield Cut(stack, proxy)


@pytest.fixture
def cut(proxied: Cut) -> Iterator[Cut]:
    yield proxied
    proxied.proxy.heal()
    _heal(proxied.stack)


def _heal(stack: Stack) -> None:
    sound = accounts_command()
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
