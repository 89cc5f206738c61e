"""Steps of a flush or a turn at which a worker kills or freezes itself if ONEFOLD_FAILPOINT says so: for tests."""

from __future__ import annotations

import signal
import threading
from itertools import count

import structlog

log = structlog.get_logger(__name__)

STEPS = ("before_produce", "after_produce", "before_offsets", "after_offsets", "after_commit", "after_store")
TURN_STEPS = ("before_turn", "in_turn", "after_turn")
ACTIONS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
PATTERN = rf"^({'|'.join((*STEPS, *TURN_STEPS))}):({'|'.join(ACTIONS)}):[1-9]\d{{0,5}}$"

_armed: tuple[str, str, int] | None = None
_times = count(1)


def arm(failpoint: str | None) -> None:
    """failpoint: `after_produce:kill:20` kills this process the 20th time it reaches that step; `stop` freezes it."""
    global _armed
    if failpoint is not None:
        step, action, times = failpoint.split(":")
        _armed = step, action, int(times)


def reached(step: str) -> None:
    """Does what is armed for this step: nearly always nothing."""
    if _armed is None or _armed[0] != step or next(_times) != _armed[2]:
        return
    log.warning("failpoint reached", step=step, action=_armed[1])
    signal.pthread_kill(threading.get_ident(), ACTIONS[_armed[1]])  # a signal to the process would act a little later
