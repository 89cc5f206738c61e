"""The engine, its HTTP side and its faults are tested with the tests' own accounts: every service can be deleted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FREE = (
    *("accounts", "api", "doctor", "engine", "faults", "kafka", "queries", "recounted", "releases"),
    *("unit/doctor", "unit/http"),
)
OF_SERVICES = ("faults/test_shop.py",)
SERVICE = re.compile(r"\bservices\.\w+")


def modules() -> list[Path]:
    found = (path for folder in FREE for path in (TESTS / folder).rglob("*.py"))
    return [TESTS / "conftest.py", *sorted(path for path in found if not path.as_posix().endswith(OF_SERVICES))]


@pytest.mark.parametrize("module", modules(), ids=lambda path: str(path.relative_to(TESTS)))
def test_no_service_is_imported(module: Path) -> None:
    assert SERVICE.findall(module.read_text()) == []
