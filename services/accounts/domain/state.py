"""An account is one of three phases; only an open one has a balance."""

from typing import Annotated, Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field

from services.accounts.domain.events import (
    AccountCharged,
    AccountClosed,
    AccountEvent,
    AccountOpened,
    PaymentReceived,
)


class Phase(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class Unopened(Phase):
    phase: Literal["unopened"] = "unopened"


class Open(Phase):
    """`balance_cents` is what the customer owes, never negative."""

    phase: Literal["open"] = "open"
    balance_cents: int


class Closed(Phase):
    phase: Literal["closed"] = "closed"


Account = Annotated[Unopened | Open | Closed, Field(discriminator="phase")]

INITIAL: Account = Unopened()


def evolve(account: Account, event: AccountEvent) -> Account:
    """The account after `event`."""
    match event:
        case AccountCharged(amount_cents=amount):
            return Open(balance_cents=_balance(account) + amount)
        case PaymentReceived(amount_cents=amount):
            return Open(balance_cents=_balance(account) - amount)
        case AccountOpened():
            return Open(balance_cents=0)
        case AccountClosed():
            return Closed()
        case _:
            assert_never(event)


def _balance(account: Account) -> int:
    return account.balance_cents if isinstance(account, Open) else 0
