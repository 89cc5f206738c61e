"""A copy of the checkout to add services to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shared.dev.additions import forget
from shared.runtime.checkout import found_services
from tests.scaffold.checkout import ROOT, Checkout
from tests.scaffold.releases import release

OURS = {"accounts", "inventory", "orders", "pickups", "sales"}  # other services may have the names that these tests use
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".onefold", ".hypothesis", ".*_cache")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A copy of this checkout without generated files."""
    return copied(tmp_path)


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """One copy for all tests that do not change it."""
    return copied(tmp_path_factory.mktemp("untouched"))


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A template with six releases, for all tests: they change clones of it."""
    template = copied(tmp_path_factory.mktemp("template"))
    release(template)
    return template


@pytest.fixture(autouse=True)
def _who_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"):
        monkeypatch.setenv(f"GIT_{name}", "x@example.org")


def copied(folder: Path) -> Checkout:
    root = folder / "checkout"
    shutil.copytree(ROOT, root, ignore=NOT_COPIED)
    for service in set(found_services(root)) - OURS:
        forget(root, service)
    return Checkout(root)
