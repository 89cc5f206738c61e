"""Workers that would be given records without their rows, by a leader that doesn't know all topics yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.dev.stack import Stack
from tests.conftest import accounts_stack
from tests.faults import broken

pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with accounts_stack(tmp_path_factory.mktemp("mixed"), workers=3) as stack:
        yield stack


def test_a_leader_gives_none_before_the_brokers_tell_it_of_all_topics(three: Stack) -> None:
    for worker in three.workers:
        worker.stop()
    leader, *_ = three.workers
    leader.command = broken.command(broken.assigns_before_it_knows_changelogs)
    for worker in three.workers:
        worker.start()
    assert "the brokers do not tell of all topics" in leader.log.read_text()
