"""An errand is pending, attempted, waiting for its next attempt, done, lost or given up. `attempt` counts from 1."""

from typing import Annotated, Literal, assert_never

from pydantic import Field

from shared.domain import Instant, Int64, State
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


class Absent(State):
    phase: Literal["absent"] = "absent"


class Pending(State):
    """pending_for: the target, by which the runner finds it."""

    phase: Literal["pending"] = "pending"
    content: Content
    attempt: Int64
    pending_for: str


class Attempting(State):
    phase: Literal["attempting"] = "attempting"
    content: Content
    attempt: Int64
    repeats: bool


class Waiting(State):
    phase: Literal["waiting"] = "waiting"
    content: Content
    attempt: Int64
    reason: str
    due: Instant


class Lost(State):
    phase: Literal["lost"] = "lost"
    content: Content
    attempt: Int64


class GivenUp(State):
    phase: Literal["given_up"] = "given_up"
    content: Content
    attempt: Int64
    reason: str


class Done(State):
    phase: Literal["done"] = "done"
    content: Content
    attempt: Int64


Open = Pending | Attempting | Waiting | Lost | GivenUp | Done
Errand = Annotated[Absent | Open, Field(discriminator="phase")]

INITIAL: Errand = Absent()


def evolve(errand: Errand, event: ErrandEvent) -> Errand:
    """The errand after `event`."""
    if isinstance(event, ErrandRequested):
        return Pending(content=event.content, attempt=1, pending_for=event.content.target)
    if isinstance(errand, Absent):
        return errand
    content = errand.content
    match event:
        case ErrandAttempted(attempt=attempt, repeats=repeats):
            return Attempting(content=content, attempt=attempt, repeats=repeats)
        case ErrandFailed(attempt=attempt, reason=reason, due=due):
            return Waiting(content=content, attempt=attempt, reason=reason, due=due)
        case ErrandResumed(attempt=attempt):
            return Pending(content=content, attempt=attempt, pending_for=content.target)
        case ErrandLost(attempt=attempt):
            return Lost(content=content, attempt=attempt)
        case ErrandGivenUp(attempt=attempt, reason=reason):
            return GivenUp(content=content, attempt=attempt, reason=reason)
        case ErrandDone(attempt=attempt):
            return Done(content=content, attempt=attempt)
        case _:
            assert_never(event)
