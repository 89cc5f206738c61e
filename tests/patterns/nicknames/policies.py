"""Which commands follow from each event."""

from shared.domain import EventEnvelope
from shared.topology import Policy, Send
from tests.patterns.nicknames.domain.commands import ExpireNickname
from tests.patterns.nicknames.domain.events import NicknameClaimed
from tests.patterns.nicknames.topology import EVENTS, TIMERS


def set_timer(event: EventEnvelope[NicknameClaimed]) -> list[Send]:
    return [Send(TIMERS, event.aggregate_id, ExpireNickname(claimant=event.data.claimant))]


# `from_start`: no claim is left out that is there before the first worker runs.
POLICIES = (
    Policy(set_timer, source=EVENTS, events=(NicknameClaimed,), commands={TIMERS: (ExpireNickname,)}, from_start=True),
)
