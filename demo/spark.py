"""The accounts once more, folded from their events on Spark: `dev.py parity accounts`, if this machine can."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from shared.dev.environment import Checkout, ensure
from shared.dev.stages import StageFailed
from shared.runtime.checkout import CHECKOUT

_PARITY = (sys.executable, "-P", "-m", "shared.dev.cli", "parity", "accounts")
_CANNOT = 2


@dataclass(frozen=True, slots=True)
class Checked:
    """What Spark found, or why it was left out; problems: reasons for the demo to fail."""

    line: str
    problems: tuple[str, ...] = ()


def install() -> str | None:
    """Installs Spark's packages if they are missing. Returns why that failed, or None."""
    try:
        if find_spec("pyspark") is None:
            ensure(Checkout(CHECKOUT), ["worker", "pipelines"])
    except StageFailed as failure:
        return failure.problem
    return None


def parity(bootstrap: str) -> Checked:
    environment = os.environ | {"ONEFOLD_BOOTSTRAP": bootstrap}
    run = subprocess.run(_PARITY, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    output = run.stderr if run.returncode == _CANNOT else run.stdout or run.stderr
    line = (output.strip().splitlines() or ["parity ended without any output"])[-1]
    if run.returncode == _CANNOT:
        return left_out(line)
    return Checked(line, (line,) if run.returncode else ())


def left_out(reason: str) -> Checked:
    return Checked(f"Spark was left out: {reason}")
