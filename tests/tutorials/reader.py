"""Follows a tutorial to the letter in a copy of the checkout.

Diffs are applied and commands run; the answer must be the one below the command. A GET is repeated until it is. The
ports are those that `up` prints, and `dev.py` runs with this interpreter's packages instead of making a `.venv`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shared.runtime.checkout import CHECKOUT
from tests.waiting import Deadline

DEADLINE_S = 120.0
UP = "python3 dev.py up"
DEV = f"{sys.executable} -P -m shared.dev.cli"

Block = tuple[str, str]
"""Language and text."""


def blocks(page: str) -> list[Block]:
    text = (CHECKOUT / "docs" / "tutorials" / page).read_text()
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody at a terminal who carries out one block after the other."""

    def __init__(self, root: Path, urls: Mapping[str, str]) -> None:
        self.root = root
        self._urls = urls
        self._known: list[str] = []
        self._worker: subprocess.Popen[bytes] | None = None

    def do(self, commands: str, answer: Block | None) -> None:
        *first, last = commands.splitlines()
        for line in first:
            self._run(line)
        deadline = Deadline(DEADLINE_S)
        while not _agrees(said := self._run(last, answer), answer):
            assert "curl" in last, said
            deadline.check(said)
            time.sleep(0.5)

    def _run(self, line: str, answer: Block | None = None) -> str:
        if line.startswith(("export ", "post()")):
            self._known.append(re.sub(r"(\w+)=http://127\.0\.0\.1:\d+", lambda found: self._export(found[1]), line))
            return ""
        if " dev.py worker " in line:
            self._begin(line)
            return ""
        script = "\n".join([*self._known, line.replace("python3 dev.py", DEV)])
        run = subprocess.run(
            ["bash", "-c", script], cwd=self.root, env=environment(self.root), capture_output=True, text=True
        )
        assert answer or run.returncode == 0, run.stdout + run.stderr
        return run.stdout + run.stderr

    def _begin(self, line: str) -> None:
        """In the third terminal, at the port of NEXT."""
        self.end()
        command = re.sub(r"(?<=PORT=)\d+", self._urls["next"].rpartition(":")[2], line).replace("python3 dev.py", DEV)
        with (self.root / "third-terminal.log").open("ab") as log:
            self._worker = subprocess.Popen(
                ["env", *command.split()], cwd=self.root, env=environment(self.root), stdout=log, stderr=log
            )

    def end(self) -> None:
        """Ctrl-C in the third terminal."""
        if self._worker is not None:
            self._worker.send_signal(signal.SIGINT)
            self._worker.wait()

    def _export(self, name: str) -> str:
        return f"{name}={self._urls[name.lower()]}"


def environment(root: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}


def answer_of(following: Block | None) -> Block | None:
    """The block that follows a command, if it is what the command says."""
    return following if following and following[0] in ("json", "text") else None


def _agrees(said: str, answer: Block | None) -> bool:
    """A JSON answer may have more fields than are shown; … stands for any lines."""
    if answer is None:
        return True
    language, text = answer
    if language == "json":
        return _holds(json.loads(said), json.loads(text)) if said.startswith("{") else False
    shown = "".join(r"(.*\n)*" if line == "…" else re.escape(line) + r"\n" for line in text.splitlines())
    return re.fullmatch(shown, said) is not None


def _holds(found: object, shown: object) -> bool:
    if isinstance(shown, dict) and isinstance(found, dict):
        return all(_holds(found.get(name), value) for name, value in shown.items())
    return found == shown


@contextmanager
def up(root: Path, command: str = UP, **settings: str) -> Iterator[dict[str, str]]:
    """The first terminal: runs `up` for the duration of the block; yields a URL of each service."""
    arguments = [*DEV.split(), *command.split()[2:]]
    with subprocess.Popen(
        arguments, cwd=root, env=environment(root) | settings, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Ctrl-C"):
                    break
            yield dict(re.findall(r"^(\w+)-1 +(http://[\d.:]+)/docs$", "".join(lines), re.MULTILINE))
        finally:
            process.terminate()


def apply(root: Path, diff: str) -> None:
    subprocess.run(["patch", "-p1"], cwd=root, input=diff, text=True, check=True, capture_output=True)
