from __future__ import annotations

import pytest

from shared.dev.checks import pytest_arguments


@pytest.mark.parametrize(
    ("verb", "given", "told"),
    [
        ("test", [], ["-n", "2"]),
        ("test", ["-k", "decide"], ["-k", "decide"]),
        ("test", ["--long"], ["-m", "not compose", "-n", "2"]),
        ("test", ["--long", "tests/engine"], ["-m", "not compose", "tests/engine"]),
        ("test", ["--compose", "-x"], ["-m", "compose", "-x"]),
        ("check", [], ["-q", "-m", "not broker and not slow and not long and not compose"]),
    ],
)
def test_what_pytest_is_told(verb: str, given: list[str], told: list[str]) -> None:
    assert pytest_arguments(verb, given) == told
