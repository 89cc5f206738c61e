"""Which commands an errand accepts, and which events follow. Policies and timers may repeat theirs, and come late."""

from datetime import timedelta
from typing import assert_never, get_args

from shared.domain import Decider
from tests.patterns.errands.domain.commands import (
    AttemptErrand,
    ErrandCommand,
    ExpireErrand,
    FailErrand,
    RepeatErrand,
    RequestErrand,
    ResumeErrand,
    SettleErrand,
    SucceedErrand,
)
from tests.patterns.errands.domain.errors import NotPending, NotStuck, UnknownErrand
from tests.patterns.errands.domain.events import (
    Content,
    ErrandAttempted,
    ErrandDone,
    ErrandEvent,
    ErrandFailed,
    ErrandGivenUp,
    ErrandLost,
    ErrandRequested,
    ErrandResumed,
)
from tests.patterns.errands.domain.state import (
    INITIAL,
    Absent,
    Attempting,
    Done,
    Errand,
    GivenUp,
    Lost,
    Open,
    Pending,
    Waiting,
    evolve,
)

TARGETS = ("partner", "mail")  # as in effects.py
WAITS_S = (30, 300, 1_800, *(3_600 * hours for hours in (2, 5, 10, 14, 20, 24)))
"""The waits after each failed attempt; after the last, it is given up. Nearly those that Standard Webhooks names."""


def decide(command: ErrandCommand, errand: Errand) -> list[ErrandEvent]:
    """The events that follow from `command`; none if it was already so, or comes too late. Raises ErrandError."""
    if isinstance(command, RequestErrand):
        return _requested(command) if isinstance(errand, Absent) else []
    if isinstance(errand, Absent):
        raise UnknownErrand(f"{type(command).__name__} refused: the errand was never requested")
    match command:
        case AttemptErrand(attempt=attempt, repeats=repeats):
            if not (isinstance(errand, Pending) and errand.attempt == attempt):
                raise NotPending(f"AttemptErrand refused: the errand is {errand.phase}, attempt {errand.attempt}")
            return [ErrandAttempted(attempt=attempt, repeats=repeats)]
        case SucceedErrand():
            return [] if isinstance(errand, Done) else [ErrandDone(attempt=command.attempt)]
        case FailErrand() | ExpireErrand():
            if not (isinstance(errand, Attempting) and errand.attempt == command.attempt):
                return []
            return [_failed(command) if isinstance(command, FailErrand) else _expired(errand)]
        case ResumeErrand(attempt=attempt, due=due):
            waits = isinstance(errand, Waiting) and (errand.attempt, errand.due) == (attempt, due)
            return [ErrandResumed(attempt=attempt + 1)] if waits else []
        case RepeatErrand():
            return [ErrandResumed(attempt=_stuck(errand, command) + 1)]
        case SettleErrand():
            return [ErrandDone(attempt=_stuck(errand, command))]
        case _:
            assert_never(command)


def _requested(command: RequestErrand) -> list[ErrandEvent]:
    content = Content(target=command.target, to=command.to, subject=command.subject, body=command.body)
    known = command.target in TARGETS
    return [ErrandRequested(content=content), *([] if known else [ErrandGivenUp(attempt=0, reason="unknown target")])]


def _failed(command: FailErrand) -> ErrandEvent:
    attempt, reason = command.attempt, command.reason
    if command.final or attempt > len(WAITS_S):
        return ErrandGivenUp(attempt=attempt, reason=reason)
    return ErrandFailed(attempt=attempt, reason=reason, due=command.at + timedelta(seconds=WAITS_S[attempt - 1]))


def _expired(errand: Attempting) -> ErrandEvent:
    if not errand.repeats:
        return ErrandLost(attempt=errand.attempt)
    if errand.attempt > len(WAITS_S):
        return ErrandGivenUp(attempt=errand.attempt, reason="no outcome")
    return ErrandResumed(attempt=errand.attempt + 1)


def _stuck(errand: Open, command: ErrandCommand) -> int:
    """The attempt that a person decides about."""
    if not isinstance(errand, Lost | GivenUp):
        raise NotStuck(f"{type(command).__name__} refused: the errand is {errand.phase}, neither lost nor given up")
    return errand.attempt


DECIDER: Decider[ErrandCommand, ErrandEvent, Errand] = Decider(
    decide=decide,
    evolve=evolve,
    initial=INITIAL,
    commands=get_args(ErrandCommand),
    events=get_args(ErrandEvent),
    state=Errand,
)
