from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest

from shared.dev.environment import (
    Checkout,
    Plan,
    Stamp,
    _digests,
    _plan_now,
    _write_stamp,
    ensure,
    explain_os_error,
    plan_for,
)
from shared.dev.stages import StageFailed

CURRENT = {"worker": "w1", "dev": "d1", "java": "j1"}


@pytest.mark.parametrize(
    ("held", "wanted", "plan"),
    [
        ({"worker": "w1"}, ["worker"], "ready"),
        ({"worker": "w1", "dev": "d1"}, ["worker"], "ready"),
        ({"worker": "w1"}, ["dev"], "add"),
        ({"worker": "w0"}, ["worker"], "rebuild"),
        ({"worker": "w1", "dev": "d0"}, ["worker"], "ready"),
        ({"worker": "w1", "dev": "d0"}, ["java"], "rebuild"),
        ({"worker": "w1", "gone": "g1"}, ["java"], "rebuild"),
        ({}, ["worker"], "rebuild"),
    ],
)
def test_a_stamp_decides_what_is_to_be_done(held: dict[str, str], wanted: list[str], plan: Plan) -> None:
    assert plan_for("/here", Stamp("/here", held), CURRENT, wanted) == plan


def test_an_unstamped_environment_is_not_trusted() -> None:
    assert plan_for("/here", None, CURRENT, ["worker"]) == "rebuild"


def test_an_environment_copied_from_another_checkout_is_not_trusted() -> None:
    assert plan_for("/here", Stamp("/there", {"worker": "w1"}), CURRENT, ["worker"]) == "rebuild"


def test_an_environment_is_made_anew_when_its_python_was_replaced(tmp_path: Path) -> None:
    checkout, system = a_complete_environment(tmp_path), tmp_path / "python3"
    (tmp_path / "python3.11").touch()
    (tmp_path / "python3.13").touch()
    checkout.python.unlink()
    checkout.python.symlink_to(system)
    system.symlink_to("python3.11")
    _write_stamp(checkout, _digests(checkout))
    assert _plan_now(checkout, ["worker"]) == "ready"
    system.unlink()
    system.symlink_to("python3.13")
    assert _plan_now(checkout, ["worker"]) == "rebuild"


def test_an_environment_made_by_someone_else_is_left_alone(tmp_path: Path) -> None:
    theirs = a_complete_environment(tmp_path).python
    Checkout(tmp_path).stamp.unlink()
    with pytest.raises(StageFailed, match=r"\.venv was not made by dev\.py"):
        ensure(Checkout(tmp_path), ["worker"])
    assert theirs.exists()


def a_complete_environment(root: Path) -> Checkout:
    """It has installed the lock `worker`, the only one."""
    checkout = Checkout(root)
    checkout.locks.mkdir()
    (checkout.locks / "worker.lock").write_text("tiny==1.0\n")
    checkout.python.parent.mkdir(parents=True)
    checkout.python.touch()
    digest = hashlib.sha256(b"tiny==1.0\n").hexdigest()
    checkout.stamp.write_text(f'{{"root": "{root}", "locks": {{"worker": "{digest}"}}}}')
    return checkout


def test_a_complete_environment_is_used_as_it_is(tmp_path: Path) -> None:
    checkout = a_complete_environment(tmp_path)
    assert ensure(checkout, ["worker"]) == checkout.python
    assert not checkout.state.exists()


def test_a_lock_file_that_is_missing_is_named(tmp_path: Path) -> None:
    checkout = a_complete_environment(tmp_path)
    with pytest.raises(StageFailed, match=r"dev\.lock, pipelines\.lock is not in .*requirements"):
        ensure(checkout, ["dev", "worker", "pipelines"])


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("Could not find a version that satisfies", "ready"),
        ("Collecting big==1.0\nInstalling collected packages: big", "rebuild"),
    ],
)
def test_a_failed_addition_discards_the_environment_only_if_pip_has_touched_it(
    tmp_path: Path, said: str, left: Plan
) -> None:
    checkout = a_complete_environment(tmp_path)
    (checkout.locks / "pipelines.lock").write_text("big==1.0\n")
    (checkout.venv / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    checkout.python.write_text(f"#!/bin/sh\nprintf '%s\\n' '{said}'\nexit 1\n")
    checkout.python.chmod(0o755)
    with pytest.raises(StageFailed):
        ensure(checkout, ["worker", "pipelines"])
    assert _plan_now(checkout, ["worker"]) == left


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.ENOSPC, "disk space"), (errno.EACCES, "writable"), (errno.EIO, "path above")]
)
def test_an_os_error_is_reported_with_its_path_and_a_fix(number: int, fix: str) -> None:
    failure = explain_os_error(OSError(number, "no", "/some/path"))
    assert "/some/path" in failure.problem
    assert fix in failure.fix
