"""A service is a folder; no list names it."""

from __future__ import annotations

from pathlib import Path

from shared.runtime.checkout import found_services


def test_services_are_found_by_a_file_that_they_have(tmp_path: Path) -> None:
    for file in ("orders/app.py", "orders/topology.py", "accounts/app.py", "left/__pycache__/app.pyc"):
        path = tmp_path / "services" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert found_services(tmp_path) == ["accounts", "orders"]
    assert found_services(tmp_path, having="topology.py") == ["orders"]


def test_the_services_of_this_checkout_are_found() -> None:
    assert "accounts" in found_services() == found_services(having="topology.py")
