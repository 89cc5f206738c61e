"""Which commands a followup accepts, and which events follow. Commands of policies may come again, and late."""

from typing import assert_never, get_args

from shared.domain import Decider
from tests.patterns.followups.domain.commands import CheckFollowup, FinishFollowup, FollowupCommand, StartFollowup
from tests.patterns.followups.domain.errors import UnknownFollowup
from tests.patterns.followups.domain.events import FollowupEvent, FollowupFinished, FollowupOverdue, FollowupStarted
from tests.patterns.followups.domain.state import INITIAL, Absent, Finished, Followup, Waiting, evolve


def decide(command: FollowupCommand, followup: Followup) -> list[FollowupEvent]:
    """The events that follow from `command`; none if it was already so. Raises FollowupError."""
    match command:
        case StartFollowup():
            return [FollowupStarted()] if isinstance(followup, Absent) else []
        case CheckFollowup():
            return [FollowupOverdue()] if isinstance(followup, Waiting) else []
        case FinishFollowup():
            if isinstance(followup, Absent):
                raise UnknownFollowup("FinishFollowup refused: the followup was never started")
            return [] if isinstance(followup, Finished) else [FollowupFinished()]
        case _:
            assert_never(command)


DECIDER: Decider[FollowupCommand, FollowupEvent, Followup] = Decider(
    decide=decide,
    evolve=evolve,
    initial=INITIAL,
    commands=get_args(FollowupCommand),
    events=get_args(FollowupEvent),
    state=Followup,
)
