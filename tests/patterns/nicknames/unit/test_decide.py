"""The rules of nicknames, in sentences."""

import sys
from collections.abc import Sequence

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from shared.domain import DomainError, fold
from shared.testing.scenario import Scenario
from tests.patterns.nicknames.domain.commands import (
    ClaimNickname,
    ExpireNickname,
    NicknameCommand,
    ReleaseNickname,
    UseNickname,
)
from tests.patterns.nicknames.domain.decide import DECIDER, canonical
from tests.patterns.nicknames.domain.events import NicknameClaimed, NicknameExpired, NicknameReleased, NicknameUsed

given = Scenario(DECIDER)

CLAIMED, USED = NicknameClaimed(claimant="s-1"), NicknameUsed(claimant="s-1")
EXPIRED, RELEASED = NicknameExpired(claimant="s-1"), NicknameReleased(claimant="s-1")
CLAIM, USE = ClaimNickname(claimant="s-1"), UseNickname(claimant="s-1")
EXPIRE, RELEASE = ExpireNickname(claimant="s-1"), ReleaseNickname(claimant="s-1")
KINDS = (ClaimNickname, UseNickname, ReleaseNickname, ExpireNickname)


def commands_of(claimants: Sequence[str]) -> st.SearchStrategy[list[NicknameCommand]]:
    one = st.builds(lambda kind, claimant: kind(claimant=claimant), st.sampled_from(KINDS), st.sampled_from(claimants))
    return st.lists(one, max_size=40)


@settings(deadline=None)
@drawn(commands_of(["s-1", "s-2", "s-3"]))
def test_never_has_a_nickname_two_holders(commands: Sequence[NicknameCommand]) -> None:
    """Timers may come at any moment. held: whether it was used, by each that was told it is theirs."""
    held, state = dict[str, bool](), DECIDER.initial
    for command in commands:
        claimant = command.claimant
        try:
            state = fold(DECIDER.evolve, DECIDER.decide(command, state), state)
        except DomainError:
            assert claimant not in held
            continue
        match command:
            case ClaimNickname():
                held.setdefault(claimant, False)
            case UseNickname():
                held[claimant] = True
            case ReleaseNickname():
                held.pop(claimant, None)
            case ExpireNickname() if held.get(claimant) is False:
                held.pop(claimant)
        assert len(held) <= 1
        assert (state == DECIDER.initial) == (not held)


@pytest.mark.parametrize("past", [(CLAIMED,), (CLAIMED, USED)])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_what_one_has_is_refused_to_others(past: Sequence[NicknameClaimed], kind: type[ClaimNickname]) -> None:
    given(*past).when(kind(claimant="s-2")).then_refused("nickname.taken")


def test_whoever_crashed_claims_and_uses_again_and_is_told_the_same() -> None:
    given().when(CLAIM).then(CLAIMED)
    given(CLAIMED).when(CLAIM).then_nothing()
    given(CLAIMED).when(USE).then(USED)
    given(CLAIMED, USED).when(USE).then_nothing()
    given(CLAIMED, USED).when(CLAIM).then_nothing()


def test_a_claim_that_is_not_used_in_time_ends() -> None:
    given(CLAIMED).when(EXPIRE).then(EXPIRED)
    given(CLAIMED, EXPIRED).when(USE).then_refused("nickname.not_claimed")
    given(CLAIMED, EXPIRED).when(CLAIM).then(CLAIMED)
    given(CLAIMED, EXPIRED, NicknameClaimed(claimant="s-2")).when(USE).then_refused("nickname.taken")


def test_the_timer_ends_neither_what_is_used_nor_the_claim_of_another() -> None:
    given(CLAIMED, USED).when(EXPIRE).then_nothing()
    given(CLAIMED, RELEASED).when(EXPIRE).then_nothing()
    given(CLAIMED, RELEASED, NicknameClaimed(claimant="s-2")).when(EXPIRE).then_nothing()


def test_the_same_claimant_again_has_the_time_of_its_first_claim() -> None:
    given(CLAIMED, RELEASED, CLAIMED).when(EXPIRE).then(EXPIRED)


def test_what_is_released_is_free_for_all() -> None:
    given(CLAIMED).when(RELEASE).then(RELEASED)
    given(CLAIMED, USED).when(RELEASE).then(RELEASED)
    given(CLAIMED, USED, RELEASED).when(RELEASE).then_nothing()
    given(CLAIMED, RELEASED).when(ClaimNickname(claimant="s-2")).then(NicknameClaimed(claimant="s-2"))


def test_one_text_has_one_spelling() -> None:
    given().when(CLAIM, aggregate_id="Ace").then_refused("nickname.not_canonical")
    given().when(CLAIM, aggregate_id="ace").then(CLAIMED)
    given(CLAIMED).when(USE, aggregate_id="Ace").then(USED)  # claimed by an earlier rule
    assert {canonical(text) for text in ("Straße", "STRASSE", " ｓｔｒａｓｓｅ ")} == {"strasse"}
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    assert [text for text in every if canonical(canonical(text)) != canonical(text)] == []
