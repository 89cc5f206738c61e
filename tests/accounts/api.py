"""The HTTP API of the tests' own accounts: takes commands, shows balances."""

from typing import Literal

from pydantic import BaseModel

from shared.domain import Personal, Row
from shared.service import Resource
from tests.accounts.domain.commands import Charge, CloseAccount, OpenAccount, Pay
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.state import Account, Closed, Open, Unopened
from tests.accounts.topology import ACCOUNTS


class AccountView(BaseModel):
    """sequence: events so far."""

    account_id: str
    phase: Literal["open", "closed"]
    holder: Personal
    balance_cents: int
    order_limit_cents: int | None
    sequence: int


def account_view(key: str, row: Row[Account]) -> AccountView | None:
    if isinstance(row.state, Unopened):
        return None  # it was never opened
    shown = Open() if isinstance(row.state, Closed) else row.state  # a closed account owes nothing and has no limits
    return AccountView(**dict(shown) | dict(row.state), account_id=key, sequence=row.sequence)


routes = Resource(
    "/accounts/{account_id}",
    ACCOUNTS,
    account_view,
    filters=("phase", "balance_cents"),
    decider=DECIDER,
    commands={"": OpenAccount, "charges": Charge, "payments": Pay, "closure": CloseAccount},
    names={"": "open_account"},
    owner="account_id",
)
