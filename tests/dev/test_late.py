"""A run of this project's pytest: a late test runs once more, a wrong one does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
from tests.waiting import eventually

ran = []

def test_late_once():
    ran.append("late once")
    eventually(lambda: ran.count("late once") > 1, deadline_s=0)

def test_late():
    eventually(lambda: False, deadline_s=0)

def test_wrong_once():
    ran.append("wrong once")
    assert ran.count("wrong once") > 1
"""

pytestmark = pytest.mark.slow


def test_a_late_test_runs_once_more_and_is_counted_and_a_wrong_one_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    of_project = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "tests.summary"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *of_project, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "late: 2  test_some.py::test_late_once  test_some.py::test_late\n" in run.stdout, run.stdout + run.stderr
    assert run.stdout.count("\n  test_some.py: tests.waiting.Late: not within 0 s: False") == 2
    assert "seconds by folder: test_some.py " in run.stdout
    assert " 2 failed, 1 passed, 2 rerun in " in run.stdout.splitlines()[-1]
