"""Numbered stages on standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count

from shared.dev.stages import Stage, stage

Begin = Callable[[str], AbstractContextManager[Stage]]


def numbered() -> Begin:
    numbers = count(1)
    return lambda name: stage(f"[{next(numbers)}]", name, sys.stdout)
