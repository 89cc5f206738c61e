"""A copy of the checkout, and commands that run in it with this interpreter's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MYPY_CACHE = ".mypy_cache"


@dataclass(frozen=True, slots=True)
class Checkout:
    root: Path

    def files(self) -> dict[str, bytes]:
        """Every file's content by its path."""
        found = (path for path in self.root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {str(path.relative_to(self.root)): path.read_bytes() for path in found}

    def run(self, *command: str | Path, expect: int = 0, stdin: str | None = None, deadline_s: float = 600.0) -> str:
        """The output of a command in this interpreter's environment; AssertionError with it at another exit code."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        environment |= {"PYTHONPATH": str(self.root), "COLUMNS": "120"}
        environment |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        run = subprocess.run(
            [str(part) for part in command],
            cwd=self.root,
            env=environment,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=deadline_s,
        )
        assert run.returncode == expect, run.stdout
        return run.stdout

    def verb(self, *arguments: str, expect: int = 0, stdin: str | None = None) -> str:
        """Runs `dev.py VERB …` without making a .venv."""
        return self.run(sys.executable, "-m", "shared.dev.cli", *arguments, expect=expect, stdin=stdin)

    def pytest(self, *arguments: str) -> str:
        return self.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, deadline_s=4800.0)

    def know_types(self) -> None:
        """Copies mypy's cache from here, so that mypy checks only what has changed."""
        if (ROOT / MYPY_CACHE).exists():
            shutil.copytree(ROOT / MYPY_CACHE, self.root / MYPY_CACHE, dirs_exist_ok=True)

    def lint(self, *folders: str) -> None:
        """Runs ruff and mypy --strict on `folders`, and checks all import contracts."""
        self.know_types()
        self.run(BIN / "ruff", "check", "--no-cache", *folders)
        self.run(BIN / "ruff", "format", "--no-cache", "--check", *folders)
        self.run(BIN / "mypy", "--no-error-summary", *folders)
        self.run(BIN / "lint-imports", "--no-logo", "--no-cache")
