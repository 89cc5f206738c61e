"""What holds for every account, whatever is asked of it."""

from hypothesis import given
from hypothesis import strategies as st

from services.accounts.domain import errors
from services.accounts.domain.commands import AccountCommand, Charge, CloseAccount, OpenAccount, Pay
from services.accounts.domain.decide import decide
from services.accounts.domain.events import (
    AccountCharged,
    AccountClosed,
    AccountEvent,
    AccountOpened,
    PaymentReceived,
)
from services.accounts.domain.state import INITIAL, Account, Closed, Open, Unopened, evolve
from shared.es.decider import fold

amounts = st.integers(min_value=-1, max_value=5) | st.integers(min_value=-(2**63), max_value=2**63 - 1)
commands = st.one_of(
    st.just(OpenAccount()),
    st.builds(Charge, amount_cents=amounts),
    st.builds(Pay, amount_cents=amounts),
    st.just(CloseAccount()),
)
events = st.one_of(
    st.just(AccountOpened()),
    st.builds(AccountCharged, amount_cents=st.integers()),
    st.builds(PaymentReceived, amount_cents=st.integers()),
    st.just(AccountClosed()),
)
states = st.one_of(st.builds(Unopened), st.builds(Open, balance_cents=st.integers()), st.builds(Closed))

CODES = {error.code for error in errors.AccountError.__subclasses__()}


def history(asked: list[AccountCommand]) -> list[AccountEvent]:
    """The events of the accepted ones; a refusal must be an AccountError with a code."""
    past: list[AccountEvent] = []
    account: Account = INITIAL
    for command in asked:
        try:
            facts = decide(command, account)
        except errors.AccountError as refusal:
            assert refusal.code in CODES  # noqa: PT017
            continue
        past += facts
        account = fold(evolve, facts, account)
    return past


@given(st.lists(commands))
def test_a_balance_is_what_was_charged_less_what_was_paid_and_never_negative(asked: list[AccountCommand]) -> None:
    balance = 0
    account: Account = INITIAL
    for event in history(asked):
        account = evolve(account, event)
        match event:
            case AccountCharged(amount_cents=amount):
                balance += amount
            case PaymentReceived(amount_cents=amount):
                balance -= amount
        assert balance >= 0
        assert (account.balance_cents if isinstance(account, Open) else 0) == balance


@given(st.lists(commands))
def test_nothing_happens_before_opening_or_after_closing(asked: list[AccountCommand]) -> None:
    kinds = [type(event) for event in history(asked)]
    assert kinds[:1] in ([], [AccountOpened])
    assert kinds.count(AccountOpened) <= 1
    assert AccountClosed not in kinds[:-1]


@given(states, events)
def test_evolve_is_total(account: Account, event: AccountEvent) -> None:
    assert isinstance(evolve(account, event), Open | Closed)
