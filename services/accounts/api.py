"""The HTTP API of accounts: takes commands, shows balances."""

from typing import Literal

from pydantic import BaseModel

from services.accounts.domain.commands import Charge, CloseAccount, OpenAccount, Pay, SetLimits
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.state import Account, Closed, Open, Unopened
from services.accounts.topology import ACCOUNTS
from shared.domain import Personal, Row
from shared.service import Resource


class AccountView(BaseModel):
    """holder: the customer's name. balance_cents: what the customer owes. held_cents: held for orders under way.
    sequence: events so far.
    """

    account_id: str
    phase: Literal["open", "closed"]
    holder: Personal
    balance_cents: int
    held_cents: int
    order_limit_cents: int | None
    credit_limit_cents: int | None
    sequence: int


def account_view(key: str, row: Row[Account]) -> AccountView | None:
    if isinstance(row.state, Unopened):
        return None  # it was never opened
    shown = Open() if isinstance(row.state, Closed) else row.state  # a closed account owes nothing and has no limits
    return AccountView(
        **dict(shown) | dict(row.state), account_id=key, held_cents=shown.held_cents, sequence=row.sequence
    )


routes = Resource(
    "/accounts/{account_id}",
    ACCOUNTS,
    account_view,
    filters=("phase", "balance_cents"),
    decider=DECIDER,
    commands={"": OpenAccount, "limits": SetLimits, "charges": Charge, "payments": Pay, "closure": CloseAccount},
    names={"": "open_account"},
    owner="account_id",
)
