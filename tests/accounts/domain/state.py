"""An account is in one of three phases; a closed account owes 0."""

from typing import Annotated, Literal, assert_never

from pydantic import Field

from shared.domain import Personal, State
from tests.accounts.domain.events import AccountCharged, AccountClosed, AccountEvent, AccountOpened, PaymentReceived


class Unopened(State):
    phase: Literal["unopened"] = "unopened"


class Open(State):
    """`balance_cents` is what is owed, never negative."""

    phase: Literal["open"] = "open"
    holder: Personal = None
    balance_cents: int = 0
    order_limit_cents: int | None = None


class Closed(State):
    phase: Literal["closed"] = "closed"
    balance_cents: Literal[0] = 0  # the index on it must find what the API shows


Account = Annotated[Unopened | Open | Closed, Field(discriminator="phase")]

INITIAL: Account = Unopened()


def evolve(account: Account, event: AccountEvent) -> Account:
    """The account after `event`."""
    match event:
        case AccountOpened():
            return Open(**dict(event))
        case AccountCharged(amount_cents=amount):
            return _owing(account, amount)
        case PaymentReceived(amount_cents=amount):
            return _owing(account, -amount)
        case AccountClosed():
            return Closed()
        case _:
            assert_never(event)


def _owing(account: Account, more_cents: int) -> Open:
    before = account if isinstance(account, Open) else Open()
    return before.model_copy(update={"balance_cents": before.balance_cents + more_cents})
