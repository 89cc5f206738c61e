"""The rules of errands, in sentences."""

from datetime import timedelta

import pytest

from shared.testing.scenario import NOON, Scenario
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
from tests.patterns.errands.domain.decide import DECIDER, WAITS_S
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

given = Scenario(DECIDER)

REQUESTED = ErrandRequested(content=Content(target="partner", body="{}"))
REQUEST = RequestErrand(target="partner", body="{}")
ATTEMPT = AttemptErrand(attempt=1, repeats=True)
ATTEMPTED = ErrandAttempted(attempt=1, repeats=True)
UNSAFE = ErrandAttempted(attempt=1, repeats=False)
FAIL = FailErrand(attempt=1, reason="503", at=NOON, final=False)
DUE = NOON + timedelta(seconds=WAITS_S[0])
FAILED = ErrandFailed(attempt=1, reason="503", due=DUE)
EXPIRE = ExpireErrand(attempt=1)
LOST, DONE, GIVEN_UP = ErrandLost(attempt=1), ErrandDone(attempt=1), ErrandGivenUp(attempt=1, reason="410")
SECOND = ErrandResumed(attempt=2)


def test_what_is_requested_again_is_one_errand() -> None:
    given().when(REQUEST).then(REQUESTED)
    given(REQUESTED).when(REQUEST).then_nothing()
    given(REQUESTED, ATTEMPTED, DONE).when(REQUEST).then_nothing()


def test_what_is_for_nobody_waits_for_a_person() -> None:
    nobody = REQUESTED.content.model_copy(update={"target": "partnr"})
    given().when(RequestErrand(target="partnr", body="{}")).then(
        ErrandRequested(content=nobody), ErrandGivenUp(attempt=0, reason="unknown target")
    )


def test_each_attempt_is_of_one_runner() -> None:
    given(REQUESTED).when(ATTEMPT).then(ATTEMPTED)
    given(REQUESTED, ATTEMPTED).when(ATTEMPT).then_refused("errand.not_pending")
    given(REQUESTED, ATTEMPTED, SECOND).when(ATTEMPT).then_refused("errand.not_pending")
    given(REQUESTED, ATTEMPTED, DONE).when(AttemptErrand(attempt=2, repeats=True)).then_refused("errand.not_pending")


def test_what_succeeded_is_done_however_late_that_is_told() -> None:
    given(REQUESTED, ATTEMPTED).when(SucceedErrand(attempt=1)).then(DONE)
    given(REQUESTED, ATTEMPTED, SECOND).when(SucceedErrand(attempt=1)).then(DONE)
    given(REQUESTED, UNSAFE, LOST).when(SucceedErrand(attempt=1)).then(DONE)
    given(REQUESTED, ATTEMPTED, DONE).when(SucceedErrand(attempt=1)).then_nothing()


def test_what_failed_is_attempted_again_when_it_is_due() -> None:
    given(REQUESTED, ATTEMPTED).when(FAIL).then(FAILED)
    given(REQUESTED, ATTEMPTED, FAILED).when(ResumeErrand(attempt=1, due=DUE)).then(SECOND)
    given(REQUESTED, ATTEMPTED, FAILED, SECOND).when(ResumeErrand(attempt=1, due=DUE)).then_nothing()
    given(REQUESTED, ATTEMPTED, FAILED).when(FAIL).then_nothing()


def test_each_wait_is_longer_until_it_is_given_up() -> None:
    for attempt, wait_s in enumerate(WAITS_S, 1):
        failed = ErrandFailed(attempt=attempt, reason="503", due=NOON + timedelta(seconds=wait_s))
        past = (REQUESTED, ErrandAttempted(attempt=attempt, repeats=True))
        given(*past).when(FAIL.model_copy(update={"attempt": attempt})).then(failed)
    last = len(WAITS_S) + 1
    past = (REQUESTED, ErrandAttempted(attempt=last, repeats=True))
    given(*past).when(FAIL.model_copy(update={"attempt": last})).then(ErrandGivenUp(attempt=last, reason="503"))
    given(*past).when(ExpireErrand(attempt=last)).then(ErrandGivenUp(attempt=last, reason="no outcome"))
    assert sorted(WAITS_S) == [*WAITS_S]


def test_what_can_never_succeed_is_given_up_at_once() -> None:
    fail = FailErrand(attempt=1, reason="410", at=NOON, final=True)
    given(REQUESTED, ATTEMPTED).when(fail).then(GIVEN_UP)


def test_without_an_outcome_it_is_attempted_again_only_where_the_target_may_get_it_again() -> None:
    given(REQUESTED, ATTEMPTED).when(EXPIRE).then(SECOND)
    given(REQUESTED, UNSAFE).when(EXPIRE).then(LOST)


@pytest.mark.parametrize("past", [(FAILED,), (DONE,), (SECOND,), (SECOND, ErrandAttempted(attempt=2, repeats=True))])
def test_a_timer_that_comes_late_changes_nothing(past: tuple[ErrandEvent, ...]) -> None:
    given(REQUESTED, ATTEMPTED, *past).when(EXPIRE).then_nothing()


@pytest.mark.parametrize("stuck", [(UNSAFE, LOST), (ATTEMPTED, GIVEN_UP)])
def test_a_person_settles_what_is_lost_or_given_up(stuck: tuple[ErrandEvent, ...]) -> None:
    given(REQUESTED, *stuck).when(RepeatErrand()).then(SECOND)
    given(REQUESTED, *stuck).when(SettleErrand()).then(DONE)


@pytest.mark.parametrize("command", [RepeatErrand(), SettleErrand()])
def test_a_person_leaves_the_others_alone(command: ErrandCommand) -> None:
    given(REQUESTED, ATTEMPTED).when(command).then_refused("errand.not_stuck")
    given(REQUESTED, ATTEMPTED, DONE).when(command).then_refused("errand.not_stuck")
    given().when(command).then_refused("errand.unknown")
