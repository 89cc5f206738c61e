"""The accounts once more, folded from their events on Spark: `dev.py parity accounts`, if this machine can."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from shared.dev.environment import Checkout, ensure
from shared.dev.stages import StageFailed
from shared.dev.worker import CHECKOUT

_PARITY = (sys.executable, "-P", "-m", "shared.dev.cli", "parity", "accounts")
_DIFFERS = 1


@dataclass(frozen=True, slots=True)
class Parity:
    """What Spark found, or why it was left out; problems: what to fail for."""

    line: str
    problems: tuple[str, ...] = ()


def install() -> str | None:
    """Why Spark's packages are not here; None when they are, from now on."""
    try:
        if find_spec("pyspark") is None:
            ensure(Checkout(CHECKOUT), ["worker", "pipelines"])
    except StageFailed as failure:
        return failure.problem
    return None


def parity(bootstrap: str) -> Parity:
    environment = os.environ | {"ONEFOLD_BOOTSTRAP": bootstrap}
    run = subprocess.run(_PARITY, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    if run.returncode not in (0, _DIFFERS):
        return left_out(run.stderr.strip().splitlines()[-1])
    line = run.stdout.strip().splitlines()[-1]
    return Parity(line, (line,) if run.returncode == _DIFFERS else ())


def left_out(reason: str) -> Parity:
    return Parity(f"Spark was left out: {reason}")
