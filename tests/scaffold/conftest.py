"""A checkout of our own to add services to."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from shared.dev.scaffold import COMPOSE, DEV, PROMETHEUS, SECURE
from shared.dev.stack import found_services
from tests.scaffold.checkout import ROOT, Checkout

OURS = {"accounts", "inventory", "orders", "sales"}  # others may have the very names that these tests give
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
    root = folder / "checkout"
    shutil.copytree(ROOT, root, ignore=NOT_COPIED)
    for service in set(found_services(root)) - OURS:
        forget(root, service)
    return Checkout(root)


def forget(root: Path, service: str) -> None:
    """Takes away what `new-service` has made."""
    shutil.rmtree(root / "services" / service)
    shutil.rmtree(root / "tests" / "unit" / service, ignore_errors=True)
    entry = rf"(?<=\n)\n?  {service}:.*\n(?:    .*\n)*"
    for name, made in ((COMPOSE, entry), (SECURE, entry), (DEV, entry), (PROMETHEUS, rf", {service}\b")):
        file = root / name
        if file.exists():
            file.write_text(re.sub(made, "", file.read_text()))
