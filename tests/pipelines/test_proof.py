"""The project's central proof, for random histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.accounts.domain.commands import AccountCommand, OpenAccount
from tests.pipelines.proof import prove
from tests.unit.accounts.test_laws import commands

ACCOUNTS = 300


@pytest.mark.timeout(1800)
def test_random_histories_are_folded_alike_everywhere(spark: Any, tmp_path: Path) -> None:
    prove(random_histories(), spark, tmp_path)


def random_histories() -> dict[str, list[AccountCommand]]:
    """All run in one proof, which takes as long for one history; most begin with opening the account."""
    found: list[list[AccountCommand]] = []

    @settings(max_examples=ACCOUNTS, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(commands, min_size=1, max_size=20), st.integers(0, 7))
    def draw(asked: list[AccountCommand], chance: int) -> None:
        found.append([OpenAccount(), *asked] if chance else asked)

    draw()
    return {f"random-{number}": asked for number, asked in enumerate(found)}
