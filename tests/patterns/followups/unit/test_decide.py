"""The rules of followups, in sentences."""

from shared.testing.scenario import Scenario
from tests.patterns.followups.domain.commands import CheckFollowup, FinishFollowup, StartFollowup
from tests.patterns.followups.domain.decide import DECIDER
from tests.patterns.followups.domain.events import FollowupFinished, FollowupOverdue, FollowupStarted

given = Scenario(DECIDER)

STARTED, OVERDUE, FINISHED = FollowupStarted(), FollowupOverdue(), FollowupFinished()


def test_a_followup_is_started_once() -> None:
    given().when(StartFollowup()).then(STARTED)
    given(STARTED).when(StartFollowup()).then_nothing()
    given(STARTED, FINISHED).when(StartFollowup()).then_nothing()


def test_only_what_still_waits_is_overdue_in_the_end() -> None:
    given(STARTED).when(CheckFollowup()).then(OVERDUE)
    given(STARTED, FINISHED).when(CheckFollowup()).then_nothing()
    given().when(CheckFollowup()).then_nothing()


def test_a_followup_is_finished_once_in_time_or_late() -> None:
    given(STARTED).when(FinishFollowup()).then(FINISHED)
    given(STARTED, OVERDUE).when(FinishFollowup()).then(FINISHED)
    given(STARTED, FINISHED).when(FinishFollowup()).then_nothing()


def test_what_was_never_started_is_unknown() -> None:
    given().when(FinishFollowup()).then_refused("followup.unknown")
