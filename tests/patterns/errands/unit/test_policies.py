"""Which commands are sent after each event."""

from shared.testing.scenario import NOON, happened
from shared.topology import Send
from tests.patterns.errands.domain.commands import ExpireErrand, ResumeErrand
from tests.patterns.errands.domain.events import ErrandAttempted, ErrandFailed
from tests.patterns.errands.policies import set_deadline, set_retry
from tests.patterns.errands.topology import RETRIES, TIMERS


def test_an_attempt_expires_when_its_time_is_over() -> None:
    attempted = happened(ErrandAttempted(attempt=2, repeats=True), aggregate_id="e-1")
    assert set_deadline(attempted) == [Send(TIMERS, "e-1", ExpireErrand(attempt=2))]


def test_a_failed_attempt_is_followed_by_another_when_it_is_due() -> None:
    failed = happened(ErrandFailed(attempt=2, reason="503", due=NOON), aggregate_id="e-1")
    assert set_retry(failed) == [Send(RETRIES, "e-1", ResumeErrand(attempt=2, due=NOON))]
