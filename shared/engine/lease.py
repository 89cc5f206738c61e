"""How long a worker may answer from its rows without having heard of its group again."""

from __future__ import annotations

import time
from collections.abc import Callable

from shared.runtime.clock import elapsed_s

SLEWED_S = 0.1  # clocks that nobody sets differ by less, within a lease


class Lease:
    """Ends a fixed time after the last heartbeat that the group has answered, by whichever clock says so first.

    A hypervisor that stops its guest stops `elapsed_s`, too; when the guest goes on and its real-time clock is set,
    that clock has jumped. One that was set back tells nothing until the next heartbeat. Called from any thread.
    """

    def __init__(
        self, length_s: float, elapsed: Callable[[], float] = elapsed_s, real: Callable[[], float] = time.time
    ) -> None:
        self._length_s = length_s
        self._elapsed = elapsed
        self._real = real
        self._ahead_s = self._measure()
        self._ends = self._really_began = self._really_ends = 0.0

    def extend(self, sent: float) -> None:
        """sent: when the heartbeat was sent, by `elapsed_s`."""
        before, self._ahead_s = self._ahead_s, self._measure()
        self._ends = sent + self._length_s
        # by the clock as it was set before: the answer may have waited here while the guest was stopped
        self._really_began = sent + max(before, self._ahead_s) - SLEWED_S
        self._really_ends = self._ends + min(before, self._ahead_s)

    def end(self) -> None:
        """Until it is extended again."""
        self._ends = 0.0

    @property
    def holds(self) -> bool:
        return self._elapsed() < self._ends and self._really_began <= self._real() < self._really_ends

    def _measure(self) -> float:
        """How far the real-time clock is ahead."""
        return self._real() - self._elapsed()
