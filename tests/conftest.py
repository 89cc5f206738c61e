"""One broker and two workers of the tests' own accounts, started by the first test that needs them, for all the rest.

A whole run is four processes, each with one folder of tests at a time; each starts its own broker and workers. As most
tests wait, three would leave two cores idle for a fifth of the time.
"""

import functools
import logging
import os
import re
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from pydantic import SecretStr
from xdist.scheduler import LoadScopeScheduling

from shared.dev.issuer import DevIssuer
from shared.dev.stack import Stack
from shared.dev.worker import Command, faust_command
from shared.runtime.settings import DEV_ISSUER, Settings
from tests.accounts.service import SERVICE
from tests.accounts.topology import TOPOLOGY
from tests.faults.run import SEEN, choose_seed, listed

hypothesis.settings.register_profile("tests", deadline=None)  # of one example: it would fail because of the machine
hypothesis.settings.load_profile("tests")
pytest_plugins = ["tests.summary"]
pytest.register_assert_rewrite("tests.shop.books")

TESTS = Path(__file__).parent
LONG = ("pipelines/test_archive.py", "pipelines/test_mirrored", "tutorials/")
"""These take minutes each. `dev.py test --long` runs them."""

FIRST = ("seed", "pipelines", "scaffold", "engine", "queries", "faults", "sinks", "shop", "kafka", "dev")
"""The longest begin first and unit tests last, or one process would be left with one of them when the others end."""

SESSION_S = 6  # a silent worker's partitions move after this time
WORKER_SETTINGS = Settings(session_timeout_s=SESSION_S, log_format="json")


class ByFolder(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns whole folders, because their tests share brokers, but unit tests by module; faults by seed, as each
    process has its own brokers.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _scope_of(nodeid)


def _scope_of(nodeid: str) -> str:
    if seed := re.search(r"seed\d+", nodeid):
        return seed.group()
    found = re.match(r"tests/(unit/[\w/]+|\w+)", nodeid)
    assert found is not None, nodeid
    folder = found[1]
    return "demo" if folder == "readme" else folder  # there is one demo at a time


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFolder:
    config.option.loadscopereorder = False  # keeps the order of `pytest_collection_modifyitems`
    return ByFolder(config, log)


def pytest_configure() -> None:
    os.environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}  # a user's git may sign, or run hooks
    choose_seed()
    # in the background of a script it is ignored, also by the processes that tests interrupt: they would never end
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # without a client of its own, each request reads all authorities, for 20 ms of CPU, and tests send thousands
    ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]
    # structlog's default traceback shows every local variable of every frame: ten seconds for one bug
    structlog.configure(processors=[structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)])
    configure = structlog.configure
    # a logger would keep what the test was given that used it first, and tell no later one that captures logs
    structlog.configure = lambda **given: configure(**{**given, "cache_logger_on_first_use": False})


def pytest_unconfigure() -> None:
    logging.getLogger().handlers.clear()  # libraries that log at exit would fail on the closed capture stream


@pytest.fixture(autouse=True)
def _logs_end_with_a_test() -> Iterator[None]:
    """A command that runs in this process sends logs to the stderr that it was given, which is closed behind it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).as_posix().startswith(LONG):
            item.add_marker(pytest.mark.long)
        if "stack" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.broker)
    items.sort(key=lambda item: _rank(_scope_of(item.nodeid)))


def _rank(scope: str) -> int:
    others = len(FIRST) + scope.startswith("unit")
    return next((rank for rank, begins in enumerate(FIRST) if scope.startswith(begins)), others)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["seen"] = dict(SEEN)


def pytest_testnodedown(node: Any) -> None:
    SEEN.update(node.workeroutput["seen"] if hasattr(node, "workeroutput") else {})  # a crashed process has none


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if SEEN:
        terminalreporter.write_line(f"{listed(SEEN)}: exact")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, `dev.py` takes the tests' own accounts for the only service of this checkout, which has none."""
    monkeypatch.setattr("shared.dev.here.found_services", lambda: [TOPOLOGY.service])
    monkeypatch.setattr("shared.dev.here.load_topologies", lambda: [TOPOLOGY])
    monkeypatch.setattr("shared.dev.here.declared", lambda *_: SERVICE)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with accounts_stack(tmp_path_factory.mktemp("stack"), workers=2) as stack:
        yield stack


def accounts_command(service: str = TOPOLOGY.service) -> list[str]:
    return faust_command(service, "tests")


def variant_of_accounts(module: str) -> Command:
    """The command of workers whose app is in this module instead."""
    usual = accounts_command()
    app = f"tests.{TOPOLOGY.service}.app"
    assert app in usual
    return lambda _: [module if part == app else part for part in usual]


def guarded_by(issuer: DevIssuer, audience: str) -> Settings:
    """Of workers that ask for the issuer's tokens, and for their own secret among each other."""
    return WORKER_SETTINGS.model_copy(
        update={
            "peers": "127.0.0.0/8",
            "peer_secret": SecretStr("a secret that these workers alone know"),
            "auth": "on",
            "auth_issuer": DEV_ISSUER,
            "auth_audience": audience,
            "auth_jwks": str(issuer.key_set),
        }
    )


def accounts_stack(
    root: Path, workers: int, brokers: int = 1, command: Command = accounts_command, **more: object
) -> Stack:
    """Workers of the tests' own accounts, and brokers of their own. more: settings of all workers."""
    settings = WORKER_SETTINGS.model_copy(update=more)
    return Stack(root, {TOPOLOGY.service: workers}, brokers, settings=settings, topologies=[TOPOLOGY], command=command)
