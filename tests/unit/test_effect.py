"""The rules of effects, in sentences, and what follows from their events."""

from datetime import timedelta
from typing import get_args

import pytest

from shared.domain import Decider
from shared.testing.scenario import NOON, Scenario, happened
from shared.topology import effect_service
from shared.topology.effect import (
    INITIAL,
    WAITS_S,
    AttemptEffect,
    Content,
    Effect,
    EffectAttempted,
    EffectCommand,
    EffectDone,
    EffectEvent,
    EffectFailed,
    EffectGivenUp,
    EffectLost,
    EffectRequested,
    EffectResumed,
    ExpireEffect,
    FailEffect,
    RepeatEffect,
    RequestEffect,
    ResumeEffect,
    Rules,
    SettleEffect,
    SucceedEffect,
    evolve,
)

RULES = Rules("effect", targets=("partner", "mail"), waits_s=WAITS_S)
DECIDER: Decider[EffectCommand, EffectEvent, Effect] = Decider(
    decide=RULES.decide,
    evolve=evolve,
    initial=INITIAL,
    commands=get_args(EffectCommand),
    events=get_args(EffectEvent),
    state=Effect,
)
given = Scenario(DECIDER)

REQUESTED = EffectRequested(content=Content(target="partner", body="{}"))
REQUEST = RequestEffect(target="partner", body="{}")
ATTEMPT = AttemptEffect(attempt=1, repeats=True)
ATTEMPTED = EffectAttempted(attempt=1, repeats=True)
UNSAFE = EffectAttempted(attempt=1, repeats=False)
FAIL = FailEffect(attempt=1, reason="503", at=NOON, final=False)
DUE = NOON + timedelta(seconds=WAITS_S[0])
FAILED = EffectFailed(attempt=1, reason="503", due=DUE)
EXPIRE = ExpireEffect(attempt=1)
LOST, DONE, GIVEN_UP = EffectLost(attempt=1), EffectDone(attempt=1), EffectGivenUp(attempt=1, reason="410")
SECOND = EffectResumed(attempt=2)


def test_what_is_requested_again_is_one_effect() -> None:
    given().when(REQUEST).then(REQUESTED)
    given(REQUESTED).when(REQUEST).then_nothing()
    given(REQUESTED, ATTEMPTED, DONE).when(REQUEST).then_nothing()


def test_what_is_for_nobody_waits_for_a_person() -> None:
    nobody = REQUESTED.content.model_copy(update={"target": "partnr"})
    given().when(RequestEffect(target="partnr", body="{}")).then(
        EffectRequested(content=nobody), EffectGivenUp(attempt=0, reason="unknown target")
    )


def test_each_attempt_is_of_one_runner() -> None:
    given(REQUESTED).when(ATTEMPT).then(ATTEMPTED)
    given(REQUESTED, ATTEMPTED).when(ATTEMPT).then_refused("effect.not_pending")
    given(REQUESTED, ATTEMPTED, SECOND).when(ATTEMPT).then_refused("effect.not_pending")
    given(REQUESTED, ATTEMPTED, DONE).when(AttemptEffect(attempt=2, repeats=True)).then_refused("effect.not_pending")


def test_what_succeeded_is_done_however_late_that_is_told() -> None:
    given(REQUESTED, ATTEMPTED).when(SucceedEffect(attempt=1)).then(DONE)
    given(REQUESTED, ATTEMPTED, SECOND).when(SucceedEffect(attempt=1)).then(DONE)
    given(REQUESTED, UNSAFE, LOST).when(SucceedEffect(attempt=1)).then(DONE)
    given(REQUESTED, ATTEMPTED, DONE).when(SucceedEffect(attempt=1)).then_nothing()


def test_what_failed_is_attempted_again_when_it_is_due() -> None:
    given(REQUESTED, ATTEMPTED).when(FAIL).then(FAILED)
    given(REQUESTED, ATTEMPTED, FAILED).when(ResumeEffect(attempt=1, due=DUE)).then(SECOND)
    given(REQUESTED, ATTEMPTED, FAILED, SECOND).when(ResumeEffect(attempt=1, due=DUE)).then_nothing()
    given(REQUESTED, ATTEMPTED, FAILED).when(FAIL).then_nothing()


def test_each_wait_is_longer_until_it_is_given_up() -> None:
    for attempt, wait_s in enumerate(WAITS_S, 1):
        failed = EffectFailed(attempt=attempt, reason="503", due=NOON + timedelta(seconds=wait_s))
        past = (REQUESTED, EffectAttempted(attempt=attempt, repeats=True))
        given(*past).when(FAIL.model_copy(update={"attempt": attempt})).then(failed)
    last = len(WAITS_S) + 1
    past = (REQUESTED, EffectAttempted(attempt=last, repeats=True))
    given(*past).when(FAIL.model_copy(update={"attempt": last})).then(EffectGivenUp(attempt=last, reason="503"))
    given(*past).when(ExpireEffect(attempt=last)).then(EffectGivenUp(attempt=last, reason="no outcome"))
    assert sorted(WAITS_S) == [*WAITS_S]


def test_what_can_never_succeed_is_given_up_at_once() -> None:
    fail = FailEffect(attempt=1, reason="410", at=NOON, final=True)
    given(REQUESTED, ATTEMPTED).when(fail).then(GIVEN_UP)


def test_without_an_outcome_it_is_attempted_again_only_where_the_target_may_get_it_again() -> None:
    given(REQUESTED, ATTEMPTED).when(EXPIRE).then(SECOND)
    given(REQUESTED, UNSAFE).when(EXPIRE).then(LOST)


@pytest.mark.parametrize("past", [(FAILED,), (DONE,), (SECOND,), (SECOND, EffectAttempted(attempt=2, repeats=True))])
def test_a_timer_that_comes_late_changes_nothing(past: tuple[EffectEvent, ...]) -> None:
    given(REQUESTED, ATTEMPTED, *past).when(EXPIRE).then_nothing()


@pytest.mark.parametrize("stuck", [(UNSAFE, LOST), (ATTEMPTED, GIVEN_UP)])
def test_a_person_settles_what_is_lost_or_given_up(stuck: tuple[EffectEvent, ...]) -> None:
    given(REQUESTED, *stuck).when(RepeatEffect()).then(SECOND)
    given(REQUESTED, *stuck).when(SettleEffect()).then(DONE)


@pytest.mark.parametrize("command", [RepeatEffect(), SettleEffect()])
def test_a_person_leaves_the_others_alone(command: EffectCommand) -> None:
    given(REQUESTED, ATTEMPTED).when(command).then_refused("effect.not_stuck")
    given(REQUESTED, ATTEMPTED, DONE).when(command).then_refused("effect.not_stuck")
    given().when(command).then_refused("effect.unknown")


def test_after_an_attempt_and_after_a_failure_a_timer_goes_on() -> None:
    service = effect_service("notices", "notice", targets=("partner",))
    on_attempt, on_failure = service.policies
    (deadline,) = on_attempt.react(happened(EffectAttempted(attempt=2, repeats=True), aggregate_id="e-1"))
    (retry,) = on_failure.react(happened(EffectFailed(attempt=2, reason="503", due=NOON), aggregate_id="e-1"))
    said = [(send.topic.name, send.aggregate_id, send.command.TYPE, dict(send.command)) for send in (deadline, retry)]
    assert said == [
        ("notices.timers.v1", "e-1", "notice.expire", {"attempt": 2}),
        ("notices.timers.v2", "e-1", "notice.resume", {"attempt": 2, "due": NOON}),
    ]


def test_a_service_has_messages_and_refusals_of_its_own_name() -> None:
    decider = effect_service("notices", "notice", targets=("partner",)).decider
    assert decider is not None
    request, attempt = (
        next(each for each in decider.commands if f"notice.{verb}" == each.TYPE) for verb in ("request", "attempt")
    )
    (requested,) = decider.decide(request(target="partner", body="{}"), decider.initial)
    assert requested.TYPE == "notice.requested"
    Scenario(decider)().when(attempt(attempt=1, repeats=True)).then_refused("notice.unknown")
