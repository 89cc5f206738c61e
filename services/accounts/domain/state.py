"""An account is in one of three phases; a closed account owes 0."""

from collections.abc import Mapping
from typing import Annotated, Literal, assert_never

from pydantic import Field

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
from shared.domain import Personal, State


class Unopened(State):
    phase: Literal["unopened"] = "unopened"


class Open(State):
    """`balance_cents` is what the customer owes, never negative. `held`: cents by order, for orders under way."""

    phase: Literal["open"] = "open"
    holder: Personal = None
    balance_cents: int = 0
    held: Mapping[str, int] = {}
    order_limit_cents: int | None = None
    credit_limit_cents: int | None = None

    @property
    def held_cents(self) -> int:
        return sum(self.held.values())


class Closed(State):
    phase: Literal["closed"] = "closed"
    balance_cents: Literal[0] = 0  # the index on it must find what the API shows


Account = Annotated[Unopened | Open | Closed, Field(discriminator="phase")]

INITIAL: Account = Unopened()


def evolve(account: Account, event: AccountEvent) -> Account:
    """The account after `event`."""
    match event:
        case OrderCharged(order_id=order_id, amount_cents=amount):
            return _holding(_open(account), order_id, amount)
        case OrderSettled(order_id=order_id, amount_cents=amount):
            return _owing(_releasing(_open(account), order_id), amount)
        case OrderRefunded(order_id=order_id):
            return _releasing(_open(account), order_id)
        case AccountCharged(amount_cents=amount):
            return _owing(_open(account), amount)
        case PaymentReceived(amount_cents=amount):
            return _owing(_open(account), -amount)
        case AccountOpened():
            return Open(**dict(event))
        case LimitsSet():
            return _open(account).model_copy(update=dict(event))
        case AccountClosed():
            return Closed()
        case ChargeRefused():
            return account
        case _:
            assert_never(event)


def _open(account: Account) -> Open:
    return account if isinstance(account, Open) else Open()


def _owing(account: Open, more_cents: int) -> Open:
    return account.model_copy(update={"balance_cents": account.balance_cents + more_cents})


def _holding(account: Open, order_id: str, amount_cents: int) -> Open:
    return account.model_copy(update={"held": {**account.held, order_id: amount_cents}})


def _releasing(account: Open, order_id: str) -> Open:
    held = {other: amount for other, amount in account.held.items() if other != order_id}
    return account.model_copy(update={"held": held})
