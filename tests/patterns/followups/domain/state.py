"""A followup is absent, waiting, overdue or finished."""

from typing import Annotated, Literal, assert_never

from pydantic import Field

from shared.domain import State
from tests.patterns.followups.domain.events import FollowupEvent, FollowupFinished, FollowupOverdue, FollowupStarted


class Absent(State):
    phase: Literal["absent"] = "absent"


class Waiting(State):
    phase: Literal["waiting"] = "waiting"


class Overdue(State):
    phase: Literal["overdue"] = "overdue"


class Finished(State):
    phase: Literal["finished"] = "finished"


Followup = Annotated[Absent | Waiting | Overdue | Finished, Field(discriminator="phase")]

INITIAL: Followup = Absent()


def evolve(_followup: Followup, event: FollowupEvent) -> Followup:
    """The followup after `event`."""
    match event:
        case FollowupStarted():
            return Waiting()
        case FollowupOverdue():
            return Overdue()
        case FollowupFinished():
            return Finished()
        case _:
            assert_never(event)
