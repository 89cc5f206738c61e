from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import RootModel, create_model

from shared.domain.decider import fold
from shared.domain.message import Command, Part
from shared.domain.state import State
from shared.topology.projection import Projection
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import (
    AccountCharged,
    AccountClosed,
    AccountEvent,
    AccountOpened,
    PaymentReceived,
)
from tests.accounts.domain.state import Unopened
from tests.accounts.topology import ACCOUNTS

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


def test_two_events_with_one_type_are_refused() -> None:
    class AccountReopened(AccountOpened):
        """A copy, but for its TYPE."""

    with pytest.raises(ValueError, match=r"share a TYPE: \['AccountOpened', 'AccountReopened'\]: give each its own"):
        replace(DECIDER, events=(*DECIDER.events, AccountReopened))


def test_a_command_without_a_type_is_refused() -> None:
    class Reopen(Command):
        pass

    commands: Any = (*DECIDER.commands, Reopen)
    with pytest.raises(ValueError, match=r"messages without a TYPE: \['Reopen'\]: give each a wire name"):
        replace(DECIDER, commands=commands)


class Wish(Part):
    sku: str


class Basket(Part, extra="forbid"):
    wishes: dict[str, tuple[Wish, ...]]


class Strict(Part, extra="forbid"):
    more: tuple["Strict", ...] = ()


def with_lines(kind: Any) -> Any:
    order = create_model("Order", __base__=Command, lines=(kind, ...))
    order.TYPE = "shop.order"
    return replace(DECIDER, commands=(*DECIDER.commands, order))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Wish, Wish | None, tuple[Wish, ...], Basket, RootModel[list[Wish]]])
def test_a_command_with_a_part_that_ignores_unknown_fields_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match=r'Order: Wish inside it .*; fix: class Wish\(Part, extra="forbid"\)'):
        with_lines(kind)


@pytest.mark.parametrize("kind", [Strict, RootModel[list[Strict]], dict[str, int]])
def test_a_command_whose_parts_take_only_their_fields_is_taken(kind: Any) -> None:
    with_lines(kind)


def test_an_initial_state_that_is_not_of_its_type_is_refused() -> None:
    class Forgotten(State):
        phase: Literal["forgotten"] = "forgotten"

    with pytest.raises(
        ValueError, match=r"^initial=Forgotten\(.*\): its row cannot be read: .*(\n.*)*; fix: make it of"
    ):
        replace(DECIDER, initial=Forgotten())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^initial=None: its row cannot be read: "):
        replace(DECIDER, initial=None)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"^initial=\(1,\): its row is read as \[1\]; fix: make it of the type in `state`"
    ):
        replace(DECIDER, initial=(1,), state=list[int])  # type: ignore[arg-type]
    replace(DECIDER, initial=0, state=float)  # type: ignore[arg-type]


def test_a_view_s_initial_is_checked_unless_it_is_none() -> None:
    def view(initial: Any, state: Any) -> Any:
        return Projection(ACCOUNTS, lambda view, *_: view, initial=initial, events=(AccountOpened,), state=state)

    with pytest.raises(ValueError, match=r"^initial=Unopened"):
        view(Unopened(), int)
    view(None, int)
    view({"seen": 0}, dict)
