"""One thing that is wrong, and the command that mends it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import urlsplit

_HERE = ("127.0.0.1", "localhost", "::1")


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


def at(url: str, *words: str) -> str:
    """A command on the machine of a worker."""
    host = urlsplit(url).hostname or ""
    return shlex.join([*(() if host in _HERE else ("ssh", host)), *words])
