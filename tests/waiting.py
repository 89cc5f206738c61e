"""Waiting, with a deadline, for what another process or thread does."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def eventually(look: Callable[[], Found], good: Callable[[Found], object] = bool, deadline_s: float = 90.0) -> Found:
    """The first value found that is good; raises AssertionError with the last one at the deadline."""
    deadline = time.monotonic() + deadline_s
    while not good(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found
