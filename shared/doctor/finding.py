"""One thing that is wrong, and the command that mends it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """As `doctor` exits where nothing is worse; with 0 when it finds nothing, with 1 or 2 when it can't look."""

    NOTICE = 3
    """It wastes something."""
    WARNING = 4
    """It does harm once something else happens."""
    URGENT = 5
    """Records wait, are lost, or can be lost without anything else."""


@dataclass(frozen=True, slots=True)
class Finding:
    """code: stable, for programs. what: with the place. cure: as one types it in a shell; else what to do, where only a
    person or another machine can.
    """

    severity: Severity
    code: str
    what: str
    evidence: str
    why: str
    cure: str


def dev(*words: str) -> str:
    """A command of this checkout."""
    return shlex.join(["python3", "dev.py", *words])
