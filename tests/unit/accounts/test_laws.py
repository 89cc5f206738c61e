"""What holds for every account, whatever is asked of it."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.accounts.domain.commands import (
    AccountCommand,
    Charge,
    ChargeOrder,
    CloseAccount,
    OpenAccount,
    Pay,
    RefundOrder,
    SetLimits,
    SettleOrder,
)
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import (
    AccountCharged,
    AccountClosed,
    AccountEvent,
    AccountOpened,
    ChargeRefused,
    LimitsSet,
    OrderCharged,
    OrderRefunded,
    OrderSettled,
    PaymentReceived,
)
from services.accounts.domain.state import INITIAL, Account, Closed, Open, Unopened, evolve
from shared.domain import Row, fold
from shared.testing.scenario import history

small = st.integers(min_value=-1, max_value=5)
amounts = small | st.integers(min_value=-(2**63), max_value=2**63 - 1)
limits = st.none() | st.integers(min_value=-1, max_value=20)
orders = st.sampled_from(["o-1", "o-2", "o-3"])
commands = st.one_of(
    st.builds(OpenAccount, order_limit_cents=limits, credit_limit_cents=limits),
    st.builds(SetLimits, order_limit_cents=limits, credit_limit_cents=limits),
    st.builds(Charge, amount_cents=amounts),
    st.builds(Pay, amount_cents=amounts),
    st.just(CloseAccount()),
    st.builds(ChargeOrder, order_id=orders, amount_cents=amounts),
    st.builds(ChargeOrder, order_id=orders, amount_cents=small),
    st.builds(RefundOrder, order_id=orders),
    st.builds(SettleOrder, order_id=orders),
)
numbers = st.integers()
events = st.one_of(
    st.builds(AccountOpened, order_limit_cents=limits, credit_limit_cents=limits),
    st.builds(LimitsSet, order_limit_cents=limits, credit_limit_cents=limits),
    st.builds(AccountCharged, amount_cents=numbers),
    st.builds(PaymentReceived, amount_cents=numbers),
    st.just(AccountClosed()),
    st.builds(OrderCharged, order_id=orders, amount_cents=numbers),
    st.builds(ChargeRefused, order_id=orders, amount_cents=numbers, code=st.text()),
    st.builds(OrderRefunded, order_id=orders, amount_cents=numbers),
    st.builds(OrderSettled, order_id=orders, amount_cents=numbers),
)
states = st.one_of(st.builds(Unopened), st.builds(Open, balance_cents=st.integers()), st.builds(Closed))


@given(st.lists(commands))
def test_money_is_conserved_and_never_negative(asked: list[AccountCommand]) -> None:
    """What is owed was charged or settled and not paid; what is held was charged to orders that have not ended."""
    balance, held = 0, Counter[str]()
    account: Account = INITIAL
    for event in history(DECIDER, [OpenAccount(), *asked]):
        account = evolve(account, event)
        match event:
            case AccountCharged(amount_cents=amount):
                balance += amount
            case PaymentReceived(amount_cents=amount):
                balance -= amount
            case OrderCharged(order_id=order_id, amount_cents=amount):
                held[order_id] += amount
            case OrderRefunded(order_id=order_id, amount_cents=amount):
                held[order_id] -= amount
            case OrderSettled(order_id=order_id, amount_cents=amount):
                held[order_id] -= amount
                balance += amount
        found = account if isinstance(account, Open) else Open()
        assert balance >= 0
        assert (found.balance_cents, +Counter(found.held)) == (balance, +held)


@given(st.lists(commands))
def test_an_order_ends_once_for_each_time_it_was_charged(asked: list[AccountCommand]) -> None:
    under_way: set[str] = set()
    for event in history(DECIDER, [OpenAccount(), *asked]):
        if isinstance(event, OrderCharged):
            assert event.order_id not in under_way
            under_way.add(event.order_id)
        elif isinstance(event, OrderRefunded | OrderSettled):
            under_way.remove(event.order_id)
        assert not (under_way and isinstance(event, AccountClosed))


@given(st.lists(commands))
def test_a_charge_never_exceeds_a_limit(asked: list[AccountCommand]) -> None:
    account: Account = INITIAL
    for event in history(DECIDER, [OpenAccount(), *asked]):
        account = evolve(account, event)
        if isinstance(account, Open) and isinstance(event, AccountCharged | OrderCharged) and event.amount_cents > 0:
            owed = account.balance_cents + account.held_cents
            assert account.credit_limit_cents is None or owed <= account.credit_limit_cents
            if isinstance(event, OrderCharged):
                assert account.order_limit_cents is None or event.amount_cents <= account.order_limit_cents


@given(st.lists(commands))
def test_nothing_happens_before_opening_or_after_closing(asked: list[AccountCommand]) -> None:
    kinds = [type(event) for event in history(DECIDER, asked) if not isinstance(event, ChargeRefused)]
    assert kinds[:1] in ([], [AccountOpened])
    assert kinds.count(AccountOpened) <= 1
    assert AccountClosed not in kinds[:-1]


@given(states, st.lists(events))
def test_evolve_is_total_and_a_row_survives_its_bytes(account: Account, past: list[AccountEvent]) -> None:
    account = fold(evolve, past, account)
    assert isinstance(account, Unopened | Open | Closed)
    row = Row(len(past), account, {}, 0)
    assert DECIDER.row_codec.decode(DECIDER.row_codec.encode(row)) == row
