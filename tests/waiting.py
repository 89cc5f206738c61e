"""Waiting, with a deadline, for what another process or thread does."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

PATIENCE_S = 90.0
"""More than ten times what a quiet machine takes for anything that tests wait for, but for Spark and faults."""


class Late(AssertionError):
    """Something is not done yet: the machine may be too slow, or it never comes. Such a test runs once more."""


class Deadline:
    """Begins at once, and is asked as long as one waits."""

    def __init__(self, seconds: float = PATIENCE_S) -> None:
        self._seconds = seconds
        self._ends = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._ends - time.monotonic()

    def check(self, found: object) -> None:
        """found: what there is so far. Raises Late with it when the time is up."""
        if self.left_s < 0:
            raise Late(f"not within {self._seconds:g} s: {found}")


def eventually(
    look: Callable[[], Found], good: Callable[[Found], object] = bool, deadline_s: float = PATIENCE_S
) -> Found:
    """The first value found that is good; raises Late with the last one at the deadline."""
    deadline = Deadline(deadline_s)
    while not good(found := look()):
        deadline.check(found)
        time.sleep(0.05)
    return found
