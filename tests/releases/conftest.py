"""Workers of the tests' own accounts that are replaced by those of a later release, under load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.dev.stack import Stack
from shared.operations.provision import provision
from shared.topology import Topology
from tests.accounts.service import SERVICE
from tests.conftest import accounts_stack
from tests.faults.run import new_seed
from tests.releases import changes

SESSION_S = 120  # who is killed is back before the group goes on without it


@pytest.fixture(scope="session")
def seed() -> int:
    return new_seed()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with _two(tmp_path_factory.mktemp("releases"), None) as stack:
        yield stack


@pytest.fixture
def anew(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Two workers of an own stack, of which nothing has been written yet. Its parameter: another release, or None."""
    with _two(tmp_path, request.param) as stack:
        yield stack


@contextmanager
def _two(folder: Path, release: changes.Change | None) -> Iterator[Stack]:
    others = [Topology(topic.name.split(".")[0], (topic,)) for topic in (changes.VISITS, changes.SIGNED)]
    with accounts_stack(
        folder, workers=2, command=lambda _: changes.command(release), session_timeout_s=SESSION_S
    ) as stack:
        provision([changes.a_view(SERVICE).topology, *others], stack.settings)
        yield stack


@pytest.fixture
def released(two: Stack) -> Stack:
    """Two workers of the present release."""
    present = changes.command(None)
    for worker in two.workers:
        if worker.command != present or not worker.running:
            worker.stop()
            worker.command = present
            worker.start()
    return two
