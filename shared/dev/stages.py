"""Progress of something long, for a person to watch: one line per stage, with its time.

Standard library only: `dev.py` uses it before there is a `.venv`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from shutil import get_terminal_size
from typing import TextIO

_BAR_WIDTH = 24
_QUIET_S = 10.0
_CLEAR_LINE = "\r\x1b[K"


class StageFailed(Exception):
    """A stage cannot be done, for a reason its reader can act on."""

    def __init__(self, problem: str, fix: str, log: object = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix
        self.log = log

    def __str__(self) -> str:
        lines = [self.problem, f"log: {self.log}" if self.log else "", f"fix: {self.fix}"]
        return "\n".join(f"  {line}" for line in lines if line)


def check_known(service: str, services: Collection[str]) -> None:
    """Raises StageFailed, naming the services there are."""
    if service not in services:
        raise StageFailed(f"no service is called {service}", f"name one of: {', '.join(services)}")


@dataclass(slots=True)
class Stage:
    """One running stage; `done` is what its line will say."""

    label: str
    out: TextIO
    started: float = field(default_factory=time.monotonic)
    done: str = "done"
    _said: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def begin(self) -> None:
        if self.out.isatty():
            self._write(f"{self.label}…")

    def progress(self, count: int, total: int, doing: str) -> None:
        """Redraws the bar in a terminal; elsewhere prints a line if none was printed for ten seconds."""
        count = min(count, total)
        if self.out.isatty():
            filled = _BAR_WIDTH * count // max(total, 1)
            bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
            line = f"{self.label}{bar} {count}/{total} {doing} {self.seconds:.0f} s"
            self._write(_CLEAR_LINE + line[: get_terminal_size().columns - 1])
        elif time.monotonic() - self._said >= _QUIET_S:
            self._said = time.monotonic()
            self._write(f"{self.label}{count}/{total} {doing} ({self.seconds:.0f} s so far)\n")

    def advance(self, done: int, total: int, what: str) -> None:
        """The same, with the rate of `what` and the time left."""
        per_s = max(done / self.seconds, 1)
        self.progress(done, total, f"{what}, {per_s:,.0f}/s, {(total - done) / per_s:,.0f} s left;")

    def finish(self, text: str) -> None:
        self._write(f"{_CLEAR_LINE if self.out.isatty() else ''}{self.label}{text} ({self.seconds:.1f} s)\n")

    def _write(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()


@contextmanager
def stage(mark: str, name: str, out: TextIO | None = None) -> Iterator[Stage]:
    """`mark name   what was done (1.2 s)`, or `failed` and the error passed on. mark: such as `[2/5]`."""
    running = Stage(f"{mark} {name:<10} ", out or sys.stderr)
    running.begin()
    try:
        yield running
    except BaseException as error:
        running.finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    running.finish(running.done)
