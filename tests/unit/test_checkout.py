"""A service is a folder; no list names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.runtime.checkout import found_services
from shared.runtime.declared import Undeclared, declared


def test_services_are_found_by_a_file_that_they_have(tmp_path: Path) -> None:
    for file in ("orders/app.py", "orders/service.py", "accounts/app.py", "left/__pycache__/app.pyc"):
        path = tmp_path / "services" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert found_services(tmp_path) == ["accounts", "orders"]
    assert found_services(tmp_path, having="service.py") == ["orders"]


def test_the_services_of_this_checkout_are_found() -> None:
    assert found_services() == found_services(having="service.py")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("SERVICE = Topic('a_b.events.v1')", "not a legal name: 'a_b.events.v1'; fix: use only"),
        ("SERVICE = Topick()", "NameError: name 'Topick' is not defined"),
        ("SERVICE = Topic(", "SyntaxError: "),
        ("from nowhere_at_all import Topic", "ModuleNotFoundError: No module named 'nowhere_at_all'; fix: mend it"),
    ],
)
def test_what_can_not_be_declared_is_told_with_its_place(
    source: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a traceback: the service is named, and the declaration says what to do."""
    (tmp_path / "wrongly.py").write_text(f"from shared.topology import Topic\n{source}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path.parent)
    with pytest.raises(Undeclared, match=rf"/{tmp_path.name}/wrongly\.py:2: {re.escape(told)}"):
        declared(tmp_path.name, "wrongly", "SERVICE")
