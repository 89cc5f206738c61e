"""Keeps a stack's workers and runners running."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Never
from urllib.parse import urlsplit

from shared.dev.stack import Stack
from shared.dev.stages import StageFailed
from shared.dev.worker import Kept, Worker

_TICK_S = 0.5
_STEADY_S = 60.0
_LONGEST_PAUSE_S = 30.0


class Wanted(NamedTuple):
    """One more worker of the service; or if `first`, those that it begins with, where it has none."""

    service: str
    first: bool


def keep_running(
    stack: Stack,
    say: Callable[[str], None],
    changed: Callable[[], None] = lambda: None,
    resting: Path | None = None,
    wanted: Callable[[], Iterable[Wanted]] = lambda: (),
    workers: int = 1,
) -> Never:
    """Restarts processes that end by themselves. Raises BrokerFailed, and KeyboardInterrupt, which ends it.

    changed: called when a worker was started or stopped. resting: a folder; its files name services and
    workers to keep stopped. wanted: gives each once. workers: of a service that has none yet.
    """
    keepers: dict[Kept, Keeper] = {}
    while True:
        keepers |= {
            each: Keeper(each, say, resting) for each in (*stack.workers, *stack.runners) if each not in keepers
        }
        time.sleep(_TICK_S)
        stack.kafka.check()
        added = [_add(stack, each, workers, say) for each in wanted()]
        if [keeper for keeper in keepers.values() if keeper.tick(time.monotonic())] or any(added):
            changed()


def _add(stack: Stack, one: Wanted, workers: int, say: Callable[[str], None]) -> bool:
    """Whether it started any: the first ones may be there by now, or none can be started."""
    missing = 0 if stack.workers_of(one.service) else workers
    try:
        added = [stack.spawn_worker(one.service) for _ in range(missing if one.first else 1)]
        stack.spawn_runners()
        return bool(added)
    except (StageFailed, OSError) as failure:
        say(f"no worker of {one.service} is added:\n{failure}")
        return True  # perhaps some


class Keeper:
    """Restarts a process whenever it ends by itself, after a pause that doubles until it stays up.

    While `resting` has a file with the name of its service, or with a worker's port behind that, it is stopped.
    """

    def __init__(self, kept: Kept, say: Callable[[str], None], resting: Path | None) -> None:
        self._kept = kept
        self._say = say
        alone = [f"{kept.service}.{urlsplit(kept.url).port}"] if isinstance(kept, Worker) else []
        names = (kept.service, *alone)
        self._resting = [] if resting is None else [resting / each for each in names]
        self._rests = False
        self._deaths = 0
        self._started_at = time.monotonic()
        self._due_at: float | None = None

    def tick(self, now: float) -> bool:
        """True when it was restarted, or stopped."""
        if any(each.exists() for each in self._resting):
            return self._rest()
        if self._due_at is None and not self._rests:
            self._notice_end(now)
            return False
        if self._due_at is not None and now < self._due_at:
            return False
        self._kept.spawn()
        self._started_at, self._due_at, self._rests = now, None, False
        return True

    def _rest(self) -> bool:
        if self._rests:
            return False
        self._kept.stop()
        self._due_at, self._rests = None, True
        return True

    def _notice_end(self, now: float) -> None:
        code = self._kept.exit_code
        if code is None:
            return
        self._deaths = 1 if now - self._started_at > _STEADY_S else self._deaths + 1
        pause_s = min(2.0 ** (self._deaths - 1), _LONGEST_PAUSE_S)
        self._due_at = now + pause_s
        again = f"it is started again in {pause_s:.0f} s"
        cause = f": {found}" if (found := self._kept.cause()) else ""
        self._say(f"{self._kept.name} ended with {code}{cause}; {again}; its log is {self._kept.log}")
