"""The time that passes for the brokers, too, while this machine is suspended."""

from __future__ import annotations

import sys
import time


def elapsed_s() -> float:
    """Seconds since some moment; on Linux `time.monotonic` leaves out those of a laptop or VM that sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()
