"""The worker of accounts with a state that grows without a bound: a charge of N cents adds N characters."""

from dataclasses import replace

from shared.domain.decider import Decider
from shared.domain.state import State
from shared.service import service_app
from tests.accounts.api import routes
from tests.accounts.domain.commands import AccountCommand, Charge
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountCharged, AccountEvent, AccountOpened
from tests.accounts.service import SERVICE


class Growing(State):
    phase: str = "open"
    balance_cents: int = 0
    charges: str = ""


def decide(command: AccountCommand, _: Growing) -> list[AccountEvent]:
    if isinstance(command, Charge):
        return [AccountCharged(amount_cents=command.amount_cents)]
    return [AccountOpened()]


def evolve(state: Growing, event: AccountEvent) -> Growing:
    return Growing(charges=state.charges + "x" * event.amount_cents) if isinstance(event, AccountCharged) else state


GROWING: Decider[AccountCommand, AccountEvent, Growing] = Decider(
    decide=decide,
    evolve=evolve,
    initial=Growing(),
    commands=DECIDER.commands,
    events=DECIDER.events,
    state=Growing,
    upcasters=DECIDER.upcasters,
)

app = service_app(replace(SERVICE, decider=GROWING), routes)
