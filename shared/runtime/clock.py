"""The clocks of a worker: one that also runs while its machine is suspended, and the brokers', on which all agree."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

TOLD_S = 5.0  # synchronised machines never differ by so much
STAMPED_S = 0.001  # brokers stamp whole milliseconds, rounded down


def elapsed_s() -> float:
    """Seconds since some moment; on Linux `time.monotonic` would stop while a laptop or VM sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class BrokersClock:
    """What time it is by the brokers, learned from the time that they stamp on records; this machine's until then.

    So timers, the times of events and tokens among workers do not depend on the clock of any one machine.
    """

    def __init__(self, elapsed: Callable[[], float] = elapsed_s, real: Callable[[], float] = time.time) -> None:
        self._elapsed = elapsed
        self._real = real
        self._began: float | None = None  # when `elapsed` began, by the brokers; None while unknown
        self._told_s = 0.0

    def now(self) -> float:
        """In seconds since the epoch."""
        return self._real() if self._began is None else self._elapsed() + self._began

    @property
    def is_known(self) -> bool:
        """Whether a broker has told."""
        return self._began is not None

    @property
    def ahead_s(self) -> float:
        """How many seconds this machine's clock is ahead of the brokers'; negative when it is behind."""
        return 0.0 if self._began is None else self._real() - self.now()

    def learn(self, stamped: float, sent: float) -> None:
        """A broker has stamped a record that was sent at `sent` (`elapsed_s`) with `stamped`, since the epoch.

        That was between then and now. What is known already is kept as far as it agrees. Called from any thread.
        """
        earliest, latest = stamped - self._elapsed(), stamped + STAMPED_S - sent
        known = self._real() - self._elapsed() if self._began is None else self._began
        self._began = min(max(known, earliest), latest)
        if abs(self.ahead_s - self._told_s) >= TOLD_S:
            self._tell()

    def _tell(self) -> None:
        """Once, and again when it has changed."""
        ahead_s = self.ahead_s
        off = abs(ahead_s) >= TOLD_S
        self._told_s = ahead_s if off else 0.0
        clocks = {"ours": as_utc(self._real()), "brokers": as_utc(self.now()), "ahead_s": round(ahead_s, 1)}
        if off:
            log.warning("this machine's clock differs from the brokers'", **clocks, fix="synchronise it, as by NTP")
        else:
            log.info("this machine's clock agrees with the brokers' again", **clocks)


def as_utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


brokers_clock = BrokersClock()
"""This process's. Both of its producers teach it."""
