"""What an account accepts and refuses, in sentences."""

from datetime import UTC, datetime

import pytest

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
from services.accounts.domain.decide import DECIDER, MAX_AMOUNT_CENTS, MAX_HELD
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
from services.accounts.domain.state import Account, Open
from shared.domain.history_index import EVENTS_PER_ENTRY, HistoryEntry
from shared.domain.ids import REFERENCE_MAX_BYTES
from shared.testing.scenario import Scenario

given = Scenario(DECIDER)

OPENED = AccountOpened()
CHARGED = AccountCharged(amount_cents=2999)
PAID = PaymentReceived(amount_cents=2999)
CLOSED = AccountClosed()

LIMITED = AccountOpened(order_limit_cents=5000, credit_limit_cents=8000)
HELD = OrderCharged(order_id="o-1", amount_cents=2999)
REFUNDED = OrderRefunded(order_id="o-1", amount_cents=2999)
SETTLED = OrderSettled(order_id="o-1", amount_cents=2999)

NO_LIMITS = SetLimits(order_limit_cents=None, credit_limit_cents=None)
EVERY_COMMAND = (OpenAccount(), Charge(amount_cents=1), Pay(amount_cents=1), CloseAccount(), NO_LIMITS)


def charge(order_id: str, amount_cents: int) -> ChargeOrder:
    return ChargeOrder(order_id=order_id, amount_cents=amount_cents)


def refused(amount_cents: int, code: str) -> ChargeRefused:
    return ChargeRefused(order_id="o-2", amount_cents=amount_cents, code=code)


def test_a_new_account_can_be_opened() -> None:
    given().when(OpenAccount()).then(OPENED)


def test_an_open_account_cannot_be_opened_again() -> None:
    given(OPENED).when(OpenAccount()).then_refused("account.already_open")


@pytest.mark.parametrize("command", EVERY_COMMAND[1:])
def test_an_account_that_was_never_opened_is_unknown(command: AccountCommand) -> None:
    given().when(command).then_refused("account.unknown")


def test_unknown_comes_before_a_wrong_amount() -> None:
    given().when(Charge(amount_cents=0)).then_refused("account.unknown")


@pytest.mark.parametrize("amount_cents", [1, 2999, MAX_AMOUNT_CENTS])
def test_an_open_account_can_be_charged(amount_cents: int) -> None:
    given(OPENED).when(Charge(amount_cents=amount_cents)).then(AccountCharged(amount_cents=amount_cents))


@pytest.mark.parametrize("amount_cents", [0, -1, -(2**63)])
def test_an_amount_that_is_not_positive_is_refused(amount_cents: int) -> None:
    given(OPENED, CHARGED).when(Charge(amount_cents=amount_cents)).then_refused("account.amount_not_positive")
    given(OPENED, CHARGED).when(Pay(amount_cents=amount_cents)).then_refused("account.amount_not_positive")


@pytest.mark.parametrize("amount_cents", [MAX_AMOUNT_CENTS + 1, 2**63 - 1])
def test_an_amount_over_a_million_dollars_is_refused(amount_cents: int) -> None:
    given(OPENED).when(Charge(amount_cents=amount_cents)).then_refused("account.amount_too_large")
    given(OPENED).when(Pay(amount_cents=amount_cents)).then_refused("account.amount_too_large")


def test_what_is_owed_can_be_paid_in_parts() -> None:
    given(OPENED, CHARGED).when(Pay(amount_cents=1)).then(PaymentReceived(amount_cents=1))
    given(OPENED, CHARGED, PaymentReceived(amount_cents=1)).when(Pay(amount_cents=2998)).then(
        PaymentReceived(amount_cents=2998)
    )


def test_more_than_is_owed_cannot_be_paid() -> None:
    given(OPENED, CHARGED).when(Pay(amount_cents=3000)).then_refused("account.overpaid")
    given(OPENED, CHARGED, PAID).when(Pay(amount_cents=1)).then_refused("account.overpaid")


def test_an_account_that_owes_nothing_can_be_closed() -> None:
    given(OPENED).when(CloseAccount()).then(CLOSED)
    given(OPENED, CHARGED, PAID).when(CloseAccount()).then(CLOSED)


def test_an_account_that_owes_cannot_be_closed() -> None:
    given(OPENED, CHARGED).when(CloseAccount()).then_refused("account.owes")
    given(OPENED, AccountCharged(amount_cents=1)).when(CloseAccount()).then_refused("account.owes")


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_a_closed_account_stays_closed(command: AccountCommand) -> None:
    given(OPENED, CLOSED).when(command).then_refused("account.closed")


def test_an_account_can_be_opened_with_limits() -> None:
    given().when(OpenAccount(order_limit_cents=5000, credit_limit_cents=8000)).then(LIMITED)


def test_limits_can_be_set_and_lifted() -> None:
    limits = LimitsSet(order_limit_cents=0, credit_limit_cents=None)
    given(OPENED).when(SetLimits(order_limit_cents=0, credit_limit_cents=None)).then(limits)
    given(LIMITED).when(NO_LIMITS).then(LimitsSet(order_limit_cents=None, credit_limit_cents=None))


def test_a_limit_is_not_negative() -> None:
    given().when(OpenAccount(order_limit_cents=-1)).then_refused("account.limit_negative")
    given(OPENED).when(SetLimits(order_limit_cents=None, credit_limit_cents=-1)).then_refused("account.limit_negative")


def test_a_charge_stays_within_the_credit() -> None:
    given(LIMITED).when(Charge(amount_cents=8000)).then(AccountCharged(amount_cents=8000))
    given(LIMITED).when(Charge(amount_cents=8001)).then_refused("account.credit_exceeded")
    given(LIMITED, HELD, CHARGED).when(Charge(amount_cents=2003)).then_refused("account.credit_exceeded")


@pytest.mark.parametrize("amount_cents", [0, 1, 2999, MAX_AMOUNT_CENTS])
def test_an_order_is_charged(amount_cents: int) -> None:
    given(OPENED).when(charge("o-1", amount_cents)).then(OrderCharged(order_id="o-1", amount_cents=amount_cents))


@pytest.mark.parametrize(
    ("past", "amount_cents", "code"),
    [
        ((), 1, "account.unknown"),
        ((OPENED, CLOSED), 1, "account.closed"),
        ((OPENED,), -1, "account.amount_not_positive"),
        ((OPENED,), MAX_AMOUNT_CENTS + 1, "account.amount_too_large"),
        ((LIMITED,), 5001, "account.order_limit_exceeded"),
        ((LIMITED, HELD, CHARGED), 2003, "account.credit_exceeded"),
    ],
)
def test_a_refused_charge_is_an_event(past: tuple[AccountEvent, ...], amount_cents: int, code: str) -> None:
    given(*past).when(charge("o-2", amount_cents)).then(refused(amount_cents, code))


def test_within_both_limits_an_order_is_charged() -> None:
    given(LIMITED).when(charge("o-2", 5000)).then(OrderCharged(order_id="o-2", amount_cents=5000))
    given(LIMITED, HELD, CHARGED).when(charge("o-2", 2002)).then(OrderCharged(order_id="o-2", amount_cents=2002))


def test_an_order_may_be_free_where_more_is_owed_than_a_lowered_limit_allows() -> None:
    lowered = LimitsSet(order_limit_cents=0, credit_limit_cents=500)
    given(OPENED, CHARGED, lowered).when(charge("o-2", 0)).then(OrderCharged(order_id="o-2", amount_cents=0))
    given(OPENED, CHARGED, lowered).when(Charge(amount_cents=1)).then_refused("account.credit_exceeded")


def test_the_orders_that_an_account_holds_money_for_are_limited() -> None:
    full = given(OPENED, *(OrderCharged(order_id=f"{number}", amount_cents=1) for number in range(MAX_HELD)))
    full.when(charge("o-2", 0)).then(refused(0, "account.too_many_orders"))
    full.when(charge("1", 1)).then_nothing()


def test_the_orders_that_an_account_holds_money_for_fit_into_a_record() -> None:
    held = {f"{number:04}".ljust(REFERENCE_MAX_BYTES, '"'): MAX_AMOUNT_CENTS for number in range(MAX_HELD)}
    full = Open(held=held)
    entry: HistoryEntry[Account] = HistoryEntry(
        first=1, offsets=(2**40,) * EVENTS_PER_ENTRY, latest=datetime.now(UTC), before=full, after=full
    )
    assert len(entry.model_dump_json()) < 1_000_000


def test_an_order_is_charged_once() -> None:
    given(OPENED, HELD).when(charge("o-1", 2999)).then_nothing()


def test_a_refused_charge_can_be_asked_for_again() -> None:
    past = (refused(2999, "account.unknown"), OPENED)
    given(*past).when(charge("o-2", 2999)).then(OrderCharged(order_id="o-2", amount_cents=2999))


def test_what_is_held_for_an_order_is_not_owed_yet() -> None:
    given(OPENED, HELD).when(Pay(amount_cents=1)).then_refused("account.overpaid")


def test_a_settled_order_is_owed() -> None:
    given(OPENED, HELD).when(SettleOrder(order_id="o-1")).then(SETTLED)
    given(OPENED, HELD, SETTLED).when(Pay(amount_cents=2999)).then(PAID)
    given(OPENED, HELD, SETTLED).when(Pay(amount_cents=3000)).then_refused("account.overpaid")


def test_a_refunded_order_counts_against_no_limit() -> None:
    given(LIMITED, HELD).when(RefundOrder(order_id="o-1")).then(REFUNDED)
    given(LIMITED, HELD, REFUNDED).when(Charge(amount_cents=8000)).then(AccountCharged(amount_cents=8000))


@pytest.mark.parametrize("past", [(), (OPENED,), (OPENED, HELD, REFUNDED), (OPENED, HELD, SETTLED), (OPENED, CLOSED)])
def test_only_what_is_held_is_settled_or_refunded(past: tuple[AccountEvent, ...]) -> None:
    given(*past).when(RefundOrder(order_id="o-1")).then_nothing()
    given(*past).when(SettleOrder(order_id="o-1")).then_refused("account.not_charged")


def test_an_account_with_orders_under_way_cannot_be_closed() -> None:
    given(OPENED, HELD).when(CloseAccount()).then_refused("account.orders_under_way")
    given(OPENED, HELD, REFUNDED).when(CloseAccount()).then(CLOSED)
