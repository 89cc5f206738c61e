"""Which commands follow from each event. Policies keep no state; the followup is the memory.

To ask another service, add its commands to `contracts`, and to the `commands` of a policy: docs/adr/0003 says how it
answers.
"""

from shared.domain import EventEnvelope
from shared.topology import Policy, Send
from tests.patterns.followups.contracts.things import ThingCreated
from tests.patterns.followups.domain.commands import CheckFollowup, StartFollowup
from tests.patterns.followups.domain.events import FollowupStarted
from tests.patterns.followups.topology import COMMANDS, EVENTS, THINGS_EVENTS, TIMERS


def start(event: EventEnvelope[ThingCreated]) -> list[Send]:
    """A followup has the id of what it follows."""
    return [Send(COMMANDS, event.aggregate_id, StartFollowup())]


def set_timer(event: EventEnvelope[FollowupStarted]) -> list[Send]:
    return [Send(TIMERS, event.aggregate_id, CheckFollowup())]


# `from_start`: no event is left out that is there before the first worker runs. If the past is over, leave it out of
# `start` before the service first runs.
POLICIES = (
    Policy(
        start,
        source=THINGS_EVENTS,
        events=(ThingCreated,),
        commands={COMMANDS: (StartFollowup,)},
        from_start=True,
        name="followups",
    ),
    Policy(set_timer, source=EVENTS, events=(FollowupStarted,), commands={TIMERS: (CheckFollowup,)}, from_start=True),
)
