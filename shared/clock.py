"""A clock that also runs while this machine is suspended, as the brokers' clocks do."""

from __future__ import annotations

import sys
import time


def elapsed_s() -> float:
    """Seconds since some moment; on Linux `time.monotonic` would stop while a laptop or VM sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()
