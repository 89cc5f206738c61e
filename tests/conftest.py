"""One broker and two workers of accounts, shared by every test that needs them and started by the first."""

from collections.abc import Iterator

import pytest

from services.accounts.topology import TOPOLOGY
from shared.dev.stack import Stack
from shared.settings import Settings

SHORTEST_SESSION_S = 6  # what a broker allows: a killed worker's partitions move after so long


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = Settings(session_timeout_s=SHORTEST_SESSION_S, log_format="json")
    root = tmp_path_factory.mktemp("stack")
    with Stack(root, {TOPOLOGY.service: 2}, settings=settings, topologies=[TOPOLOGY]) as stack:
        yield stack
