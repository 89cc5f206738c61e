"""Three workers of accounts for the tests of this folder; killed ones are started again after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.dev.stack import Stack
from tests.conftest import accounts_stack
from tests.queries.cluster import owners

SHORT_SESSION_S = 3.0  # many tests wait for a take-over; others have to keep their partitions on a busy machine


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with accounts_stack(tmp_path_factory.mktemp("trio"), workers=3, session_timeout_s=SHORT_SESSION_S) as stack:
        yield stack


@pytest.fixture
def cluster(trio: Stack) -> Iterator[Stack]:
    """All three workers run and agree on the owners, before the test and after it."""
    owners(trio)
    yield trio
    for worker in trio.workers:
        if worker.exit_code is not None or not worker.is_ready():
            worker.kill()
            worker.start()
    owners(trio)
