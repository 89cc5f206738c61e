"""A checkout of our own to add services to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.scaffold.checkout import ROOT, Checkout

NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".onefold", ".hypothesis", ".*_cache", "__pycache__")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """As this one, without what is made from it."""
    return copied(tmp_path)


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """For all tests that leave it as it is."""
    return copied(tmp_path_factory.mktemp("untouched"))


def copied(folder: Path) -> Checkout:
    shutil.copytree(ROOT, folder / "checkout", ignore=NOT_COPIED)
    return Checkout(folder / "checkout")
