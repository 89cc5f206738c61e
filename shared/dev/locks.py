"""`dev.py lock`: resolves pyproject.toml and the team's own into the lock files. The only verb that needs uv.

Standard library only: it runs before there is a `.venv`, on the interpreter that runs `dev.py`.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shared.dev.stages import StageFailed, stage

OWN = "services/pyproject.toml"
LOCKS = {
    "worker": ("--extra=worker", f"--group={OWN}:worker"),
    "dev": ("--extra=worker", "--group=dev", f"--group={OWN}:worker", f"--group={OWN}:dev"),
    "pipelines": ("--extra=pipelines", f"--group={OWN}:pipelines"),
    "java": ("--extra=java",),
}
# No index, no find-links and no header: a lock file names packages and hashes, never where they are served.
_COMPILE = (
    *("uv", "pip", "compile", "pyproject.toml", "--quiet", "--universal", "--python-version=3.11"),
    *("--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--no-header"),
)


def lock(root: Path, arguments: Sequence[str]) -> None:
    """Writes requirements/*.lock. arguments: uv's, such as `--upgrade` or `--upgrade-package=pydantic`."""
    if not shutil.which("uv"):
        raise StageFailed("uv is not on the PATH", "pip install uv (only this verb needs it), then run again")
    requirements = root / "requirements"
    with tempfile.TemporaryDirectory() as scratch, stage("[1/1]", "lock") as now:
        union = Path(scratch) / "union.lock"
        _seed(union, requirements)
        _compile(root, union, *{each: None for selection in LOCKS.values() for each in selection}, *arguments)
        for name, selection in LOCKS.items():
            _compile(root, requirements / f"{name}.lock", *selection, f"--constraints={union}", "--upgrade")
            _drop_constraint_notes(requirements / f"{name}.lock", union)
        now.done = f"requirements/{{{','.join(LOCKS)}}}.lock"


def _seed(union: Path, requirements: Path) -> None:
    """Starts from what is locked now: uv keeps a locked version unless it is told to upgrade it."""
    union.write_text("".join(lock.read_text() for lock in sorted(requirements.glob("*.lock"))))


def _compile(root: Path, target: Path, *selection: str) -> None:
    command = [*_COMPILE, *selection, f"--output-file={target}"]
    if subprocess.run(command, cwd=root).returncode != 0:
        raise StageFailed(f"uv could not resolve {target.name}", f"correct pyproject.toml, or {OWN}, as uv says above")


def _drop_constraint_notes(target: Path, union: Path) -> None:
    lines = target.read_text().splitlines(keepends=True)
    target.write_text("".join(line for line in lines if str(union) not in line))
