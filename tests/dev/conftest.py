"""Fake workers instead of real ones: what is tested here is how processes are started, watched and ended."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def fake_command() -> Callable[[str], list[str]]:
    """The command of a worker that behaves as its service is called: see fake_worker.py."""
    return lambda behaviour: [sys.executable, str(Path(__file__).with_name("fake_worker.py")), behaviour]
