"""Which commands an account accepts, and which events follow."""

from typing import assert_never, get_args

from shared.domain import Decider
from tests.accounts.domain.commands import AccountCommand, Charge, CloseAccount, OpenAccount, Pay
from tests.accounts.domain.errors import (
    AlreadyClosed,
    AlreadyOpen,
    AmountNotPositive,
    AmountTooLarge,
    Overpaid,
    StillOwes,
    UnknownAccount,
)
from tests.accounts.domain.events import AccountCharged, AccountClosed, AccountEvent, AccountOpened, PaymentReceived
from tests.accounts.domain.state import INITIAL, Account, Closed, Unopened, evolve
from tests.accounts.domain.upcasters import UPCASTERS

MAX_AMOUNT_CENTS = 1_000_000_00


def decide(command: AccountCommand, account: Account) -> list[AccountEvent]:
    """The events that follow from `command`. Raises DomainError."""
    name = type(command).__name__
    match command, account:
        case _, Closed():
            raise AlreadyClosed(f"{name} refused: the account is closed")
        case OpenAccount(holder=holder, order_limit_cents=limit), Unopened():
            return [AccountOpened(holder=holder, order_limit_cents=limit)]
        case OpenAccount(), _:
            raise AlreadyOpen(f"{name} refused: the account is open")
        case _, Unopened():
            raise UnknownAccount(f"{name} refused: the account was never opened")
        case Charge(amount_cents=amount), _:
            _check_amount(amount)
            return [AccountCharged(amount_cents=amount)]
        case Pay(amount_cents=amount), _:
            _check_amount(amount)
            if amount > account.balance_cents:
                raise Overpaid(f"{name} refused: {amount} cents are more than the {account.balance_cents} owed")
            return [PaymentReceived(amount_cents=amount)]
        case CloseAccount(), _:
            if account.balance_cents > 0:
                raise StillOwes(f"{name} refused: {account.balance_cents} cents are owed")
            return [AccountClosed()]
        case _:
            assert_never(command)


def _check_amount(amount_cents: int) -> None:
    if amount_cents <= 0:
        raise AmountNotPositive(f"{amount_cents} cents refused: an amount is at least 1 cent")
    if amount_cents > MAX_AMOUNT_CENTS:
        raise AmountTooLarge(f"an amount is at most {MAX_AMOUNT_CENTS} cents")


DECIDER: Decider[AccountCommand, AccountEvent, Account] = Decider(
    decide=decide,
    evolve=evolve,
    initial=INITIAL,
    commands=get_args(AccountCommand),
    events=get_args(AccountEvent),
    state=Account,
    upcasters=UPCASTERS,
)
