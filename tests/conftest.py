"""One broker and two workers of accounts, shared by every test that needs them and started by the first."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from services.accounts.topology import TOPOLOGY
from shared.dev.stack import Stack
from shared.settings import Settings

TESTS = Path(__file__).parent
LONG = ("pipelines/test_archive.py", "pipelines/test_mirrored", "tutorials/")
"""Minutes each: run by `dev.py test --long`, so that the usual run stays under half an hour on two cores."""

SHORTEST_SESSION_S = 6  # what a broker allows: a killed worker's partitions move after so long


def pytest_configure() -> None:
    # by default structlog draws a traceback with every local variable of every frame: ten seconds for one bug
    structlog.configure(processors=[structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)])


def pytest_unconfigure() -> None:
    logging.getLogger().handlers.clear()  # libraries that log at exit would complain of the closed capture


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).as_posix().startswith(LONG):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = Settings(session_timeout_s=SHORTEST_SESSION_S, log_format="json")
    root = tmp_path_factory.mktemp("stack")
    with Stack(root, {TOPOLOGY.service: 2}, settings=settings, topologies=[TOPOLOGY]) as stack:
        yield stack
