"""What an account agrees to."""

from typing import get_args

from services.accounts.domain.commands import AccountCommand, Charge, CloseAccount, OpenAccount, Pay
from services.accounts.domain.errors import (
    AlreadyClosed,
    AlreadyOpen,
    AmountNotPositive,
    AmountTooLarge,
    Overpaid,
    StillOwes,
    UnknownAccount,
)
from services.accounts.domain.events import (
    AccountCharged,
    AccountClosed,
    AccountEvent,
    AccountOpened,
    PaymentReceived,
)
from services.accounts.domain.state import INITIAL, Account, Closed, Open, Unopened, evolve
from services.accounts.domain.upcasters import UPCASTERS
from shared.es.decider import Decider

MAX_AMOUNT_CENTS = 1_000_000_00


def decide(command: AccountCommand, account: Account) -> list[AccountEvent]:
    """The facts that follow from `command`. Raises AccountError."""
    name = type(command).__name__
    match command, account:
        case Charge(amount_cents=amount), Open():
            return [AccountCharged(amount_cents=_checked(amount))]
        case Pay(amount_cents=amount), Open(balance_cents=balance):
            if _checked(amount) > balance:
                raise Overpaid(f"{name} refused: {amount} cents are more than the {balance} owed")
            return [PaymentReceived(amount_cents=amount)]
        case OpenAccount(), Unopened():
            return [AccountOpened()]
        case OpenAccount(), Open():
            raise AlreadyOpen(f"{name} refused: the account is open")
        case CloseAccount(), Open(balance_cents=balance):
            if balance > 0:
                raise StillOwes(f"{name} refused: {balance} cents are owed")
            return [AccountClosed()]
        case _, Closed():
            raise AlreadyClosed(f"{name} refused: the account is closed")
        case _:
            raise UnknownAccount(f"{name} refused: the account was never opened")


def _checked(amount_cents: int) -> int:
    if amount_cents <= 0:
        raise AmountNotPositive(f"{amount_cents} cents refused: an amount is at least 1 cent")
    if amount_cents > MAX_AMOUNT_CENTS:
        raise AmountTooLarge(f"an amount is at most {MAX_AMOUNT_CENTS} cents")
    return amount_cents


DECIDER: Decider[AccountCommand, AccountEvent, Account] = Decider(
    decide=decide,
    evolve=evolve,
    initial=INITIAL,
    commands=get_args(AccountCommand),
    events=get_args(AccountEvent),
    state=Account,
    upcasters=UPCASTERS,
)
