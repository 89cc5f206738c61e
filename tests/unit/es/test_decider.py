from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import (
    AccountCharged,
    AccountClosed,
    AccountEvent,
    AccountOpened,
    PaymentReceived,
)
from shared.es.decider import fold

events = st.lists(
    st.one_of(
        st.just(AccountOpened()),
        st.builds(AccountCharged, amount_cents=st.integers()),
        st.builds(PaymentReceived, amount_cents=st.integers()),
        st.just(AccountClosed()),
    )
)


@given(events, events)
def test_a_fold_can_be_resumed(first: list[AccountEvent], rest: list[AccountEvent]) -> None:
    midway = fold(DECIDER.evolve, first, DECIDER.initial)
    assert fold(DECIDER.evolve, first + rest, DECIDER.initial) == fold(DECIDER.evolve, rest, midway)


@given(events)
def test_a_fold_of_nothing_is_where_it_started(past: list[AccountEvent]) -> None:
    state = fold(DECIDER.evolve, past, DECIDER.initial)
    assert fold(DECIDER.evolve, [], state) == state


def test_an_upcaster_of_a_type_nobody_declared_is_refused() -> None:
    with pytest.raises(ValueError, match=r"that no message declared here has had: \[\('account\.chargd', 1\)\]"):
        replace(DECIDER, upcasters={**DECIDER.upcasters, ("account.chargd", 1): dict})


def test_a_decider_of_no_commands_or_no_events_is_refused() -> None:
    with pytest.raises(ValueError, match="no message types"):
        replace(DECIDER, commands=())
    with pytest.raises(ValueError, match="no message types"):
        replace(DECIDER, events=())
