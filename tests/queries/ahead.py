"""Runs Faust with a real-time clock that differs from everybody else's: python -m tests.queries.ahead SECONDS …

SECONDS: by how much it is ahead; or a file that says so, and may say something else at any time.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    real, ahead = time.time, sys.argv.pop(1)
    file = Path(ahead)
    # the clock of Python alone: the broker's client stamps records with another
    time.time = lambda: real() + float(file.read_text() if file.exists() else ahead)
    runpy.run_module("faust", run_name="__main__", alter_sys=True)
