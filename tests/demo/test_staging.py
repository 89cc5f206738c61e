"""The demo and the drill start without old data, and end with their terminal except under nohup."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demo.staging import _only_one

HUNG_UP = """
import os, signal, sys
from pathlib import Path
from demo.staging import staged
from demo.verdict import Verdict

def perform(_):
    os.kill(os.getpid(), signal.SIGHUP)
    return Verdict(True, "verdict: ok")

signal.signal(signal.SIGHUP, getattr(signal, sys.argv[2]))
print(staged(Path(sys.argv[1], "demo"), 1, perform).line)
"""


def test_a_run_starts_empty_even_while_the_broker_of_a_killed_run_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written_meanwhile(folder: Path, ignore_errors: bool = False) -> None:
        if folder.exists() and not ignore_errors:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(folder))

    root = tmp_path / "demo"
    root.mkdir()
    (root / "log").touch()
    with monkeypatch.context() as disk:
        disk.setattr(shutil, "rmtree", written_meanwhile)
        with _only_one(root):
            assert not root.exists()
    root.mkdir()
    with _only_one(root):
        assert [file.name for file in tmp_path.iterdir()] == ["demo.lock"]


@pytest.mark.parametrize(("hangup", "verdict"), [("SIG_DFL", "FAILED interrupted"), ("SIG_IGN", "ok")])
def test_a_run_ends_with_its_terminal_but_not_under_nohup(hangup: str, verdict: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HUNG_UP, str(tmp_path), hangup]
    assert subprocess.run(command, capture_output=True, text=True).stdout == f"verdict: {verdict}\n"
