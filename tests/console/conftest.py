"""The console of the tests' own accounts, in this process, and a browser that shows it."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
import uvicorn
from fastapi import FastAPI

from shared.console.app import Order, create_console
from shared.console.feed import Feed
from shared.console.picture import Declared, Run, Verb
from shared.console.watch import Watcher, tail_of
from shared.dev.console import findings_of, versions_of
from shared.dev.console_process import url_at
from shared.dev.doctor import diagnose
from shared.dev.stack import Stack
from shared.dev.worker import free_port
from shared.engine.wiring import processors_of
from tests.accounts.service import SERVICE
from tests.accounts.topology import TOPOLOGY
from tests.console.browser import DESK, FOUND, Page, Screen, browser
from tests.waiting import eventually

AXE = Path(__file__).with_name("vendor") / "axe-4.14.1.min.js"
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
OPERATOR = "olga"


def opened(page: Page, console: str, screen: Screen = DESK) -> Page:
    page.open(console, screen)
    eventually(lambda: page.text(".live"), lambda text: text == "live")
    return page


def check_everybody_can_use(page: Page) -> None:
    """axe finds nothing, and nothing sticks out of the screen."""
    source = AXE.read_bytes()
    assert hashlib.sha256(source).hexdigest() == AXE_SHA256
    page.run(source.decode() + "; 0")
    found = page.run("axe.run().then(({violations}) => violations.map(({id, nodes}) => [id, nodes[0].html]))")
    assert json.dumps(found, indent=2) == "[]"
    assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


class Controls:
    """Kills the stack's workers, and says which services were to get one more."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.added: list[str] = []

    def kill(self, url: str) -> None:
        next(each for each in self._stack.workers if each.url == url).kill()

    def add(self, service: str) -> None:
        if service in self.added:
            raise LookupError(f"{service} has enough")
        self.added.append(service)


@dataclass
class Runs:
    """Says what was ordered, and that it runs. seen: the test says when it ends."""

    orders: list[Order] = field(default_factory=list)
    seen: list[Run] = field(default_factory=list)

    def begin(self, order: Order) -> None:
        if order.verb == "deploy":
            raise LookupError("only version 1 is declared")
        self.orders.append(order)
        said = ["comparing", "3 of 3 agree"]
        self.seen = [Run(service=order.service, verb=order.verb, at=time.time(), said=said, exit_code=None)]

    def end(self, exit_code: int) -> None:
        self.seen = [self.seen[0].model_copy(update={"exit_code": exit_code})]


@pytest.fixture(scope="package")
def runs() -> Runs:
    return Runs()


@pytest.fixture(scope="package")
def controls(stack: Stack) -> Controls:
    return Controls(stack)


@pytest.fixture(scope="package")
def served(stack: Stack, controls: Controls, runs: Runs) -> FastAPI:
    workers = {TOPOLOGY.service: stack.urls(TOPOLOGY.service)}
    watcher = Watcher(
        [Declared.of(TOPOLOGY, processors_of(SERVICE))],
        lambda: workers,
        lambda: findings_of(lambda: diagnose([TOPOLOGY], workers, stack.settings)),
        tail_of([TOPOLOGY], stack.bootstrap),
        acts=True,
        operator=OPERATOR,
        versions=partial(versions_of, [TOPOLOGY], stack.bootstrap),
        verbs=get_args(Verb),
        runs=lambda: runs.seen,
    )
    return create_console(watcher, controls, begin=runs.begin)


@pytest.fixture(scope="package")
def feed(served: FastAPI) -> Feed:
    found: Feed = served.state.feed
    return found


@contextmanager
def serving(served: FastAPI) -> Iterator[str]:
    """Its URL."""
    port = free_port()
    config = uvicorn.Config(served, port=port, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    running = threading.Thread(target=server.run)
    running.start()
    try:
        eventually(lambda: server.started)
        yield url_at(port)
    finally:
        server.should_exit = True
        running.join()


@pytest.fixture(scope="package")
def console(served: FastAPI) -> Iterator[str]:
    """Its URL."""
    with serving(served) as url:
        yield url


@pytest.fixture(scope="package")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if FOUND is None:
        pytest.skip("no Chromium is on the PATH; fix: install your system's package `chromium`")
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened
