"""The worker of accounts with a bug: its `decide` fails at charges of 13 cents."""

from dataclasses import replace

from shared.service import service_app
from tests.accounts.api import routes
from tests.accounts.domain.commands import AccountCommand, Charge
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountEvent
from tests.accounts.domain.state import Account
from tests.accounts.service import SERVICE

UNLUCKY_CENTS = 13


def decide(command: AccountCommand, account: Account) -> list[AccountEvent]:
    if isinstance(command, Charge) and command.amount_cents == UNLUCKY_CENTS:
        raise ZeroDivisionError("the number of this test")
    return list(DECIDER.decide(command, account))


app = service_app(replace(SERVICE, decider=replace(DECIDER, decide=decide)), routes)
