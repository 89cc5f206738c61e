"""What is compared shows the same rows, of few parcels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.begin import numbered
from bench.lists import CASES, LIMIT, lists
from bench.speed import Load


@pytest.fixture(autouse=True)
def _switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_lists_and_walks_find_the_same_pages_and_have_a_ratio(tmp_path: Path) -> None:
    report = lists(cast(Any, SimpleNamespace(root=tmp_path)), numbered(), Load(3_000, 1, 1, 1))
    assert [*report.ratios] == [f"list_vs_walk_{name}" for name in CASES]
    read = report.result("list_two_filters").figures["rows"]
    assert read in range(1, LIMIT + 1)
