"""git, as a command: its output, or an error that says what it said."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from shared.dev.stages import StageFailed

_MERGE_TREE = (2, 38)  # the first whose merge-tree writes the merged tree
_NOT_OURS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")  # set where a hook runs `dev.py`


def ran(
    folder: Path, *arguments: str | Path, stdin: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Whatever git exits with. Raises StageFailed where there is no git."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    try:
        return subprocess.run(
            ["git", *map(str, arguments)],
            cwd=folder,
            env=inherited | dict(environment or {}),
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # a path is bytes
        )
    except FileNotFoundError:
        raise StageFailed("git is not on the PATH", "install git") from None


def git(
    folder: Path, *arguments: str | Path, stdin: str | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Its output, without the line's end. Raises StageFailed with what git said."""
    run = ran(folder, *arguments, stdin=stdin, environment=environment)
    if run.returncode != 0:
        raise StageFailed(
            f"git {_command(*map(str, arguments))}: {run.stderr.strip() or run.stdout.strip()}", "mend what git says"
        )
    return run.stdout.rstrip("\n")


def _command(first: str, *rest: str) -> str:
    """The first of the arguments that is no option of git's own: `-c NAME=VALUE` or `--option=VALUE`."""
    if first == "-c":
        return _command(*rest[1:])
    return _command(*rest) if first.startswith("--") and rest else first


def check_clean(root: Path, *options: str) -> None:
    """Raises StageFailed when git could not bring back what is here. options: of `git status`."""
    status = ran(root, "status", "--porcelain", "--untracked-files=normal", *options, ".")  # whatever the user's is
    if status.returncode != 0:
        raise StageFailed(
            f"git cannot say what is committed here: {status.stderr.strip()}", "run `git init` and commit"
        )
    if found := [line[3:] for line in status.stdout.splitlines()]:
        some = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        raise StageFailed(f"there are changes that are not committed: {some}", "commit them: git is the way back")


def check_merges(version: str) -> None:
    """version: as `git --version` says it. Raises StageFailed where this git cannot merge trees."""
    found = re.search(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < _MERGE_TREE:
        raise StageFailed(f"this is {version}, which cannot merge trees", "install git 2.38 or newer")
