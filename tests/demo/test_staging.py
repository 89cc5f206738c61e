"""The demo and the drill begin with nothing."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from demo.staging import _only_one


def test_a_run_begins_with_nothing_while_a_killed_ones_broker_still_writes(
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
