"""What an account agrees to, in sentences."""

import pytest

from services.accounts.domain.commands import AccountCommand, Charge, CloseAccount, OpenAccount, Pay
from services.accounts.domain.decide import DECIDER, MAX_AMOUNT_CENTS
from services.accounts.domain.events import AccountCharged, AccountClosed, AccountOpened, PaymentReceived
from shared.testing.scenario import Scenario

given = Scenario(DECIDER)

OPENED = AccountOpened()
CHARGED = AccountCharged(amount_cents=2999)
PAID = PaymentReceived(amount_cents=2999)
CLOSED = AccountClosed()

EVERY_COMMAND = (OpenAccount(), Charge(amount_cents=1), Pay(amount_cents=1), CloseAccount())


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
