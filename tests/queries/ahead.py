"""Runs Faust with a real-time clock that is ahead of everybody else's: python -m tests.queries.ahead SECONDS …"""

from __future__ import annotations

import runpy
import sys
import time

if __name__ == "__main__":
    real, ahead_s = time.time, float(sys.argv.pop(1))
    time.time = lambda: real() + ahead_s  # the clock of Python alone: the broker's client stamps records with another
    runpy.run_module("faust", run_name="__main__", alter_sys=True)
