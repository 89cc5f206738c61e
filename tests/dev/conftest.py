"""Fake workers instead of real ones: these tests are about starting, watching and ending processes."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def fake_command() -> Callable[[str], list[str]]:
    """Makes the command of a fake worker, whose service name is its behaviour: see fake_worker.py."""
    return lambda behaviour: [sys.executable, str(Path(__file__).with_name("fake_worker.py")), behaviour]
