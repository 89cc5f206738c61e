"""Which commands follow from each event. What requests errands are policies of other services."""

from shared.domain import EventEnvelope
from shared.topology import Policy, Send
from tests.patterns.errands.domain.commands import ExpireErrand, ResumeErrand
from tests.patterns.errands.domain.events import ErrandAttempted, ErrandFailed
from tests.patterns.errands.topology import EVENTS, RETRIES, TIMERS


def set_deadline(event: EventEnvelope[ErrandAttempted]) -> list[Send]:
    return [Send(TIMERS, event.aggregate_id, ExpireErrand(attempt=event.data.attempt))]


def set_retry(event: EventEnvelope[ErrandFailed]) -> list[Send]:
    return [Send(RETRIES, event.aggregate_id, ResumeErrand(attempt=event.data.attempt, due=event.data.due))]


# `from_start`: no attempt is left out that is there before the first worker runs.
POLICIES = (
    Policy(set_deadline, source=EVENTS, events=(ErrandAttempted,), commands={TIMERS: (ExpireErrand,)}, from_start=True),
    Policy(set_retry, source=EVENTS, events=(ErrandFailed,), commands={RETRIES: (ResumeErrand,)}, from_start=True),
)
