"""Later releases of the tests' own accounts, each a change of what is declared, and a worker of one of them:
`python -m tests.releases.changes CHANGE ARGUMENTS OF FAUST`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from faust.cli.faust import cli
from pydantic import Field

from shared.dev.worker import faust_command
from shared.domain import Decider, Event, EventEnvelope, State
from shared.topology import Policy, Projection, Send, Service, Table, Topic
from tests.accounts import service
from tests.accounts.domain import decide as domain
from tests.accounts.domain.commands import AccountCommand, OpenAccount
from tests.accounts.domain.events import AccountCharged, AccountEvent
from tests.accounts.domain.state import Account, Closed, Open, Unopened
from tests.accounts.topology import COMMANDS, TOPOLOGY

VISITS, SIGNED = Topic("visits.events.v1"), Topic("contracts.events.v1")
"""Of other services."""

TOTALS = Table("totals", source=VISITS)


class Visited(Event):
    TYPE = "visit.made"

    minutes: int


class Total(State):
    visits: int = 0
    minutes: int = 0


class Signed(Event):
    TYPE = "contract.signed"

    account_id: str


def count_visits(total: Total, event: EventEnvelope[Visited], _: str) -> Total:
    return Total(visits=total.visits + 1, minutes=total.minutes + event.data.minutes)


def a_view(before: Service) -> Service:
    """A table and a source are new."""
    view: Projection[Any, Any] = Projection(TOTALS, count_visits, Total(), (Visited,), Total)
    topology = replace(before.topology, tables=(*before.topology.tables, TOTALS))
    return replace(before, topology=topology, projections=(*before.projections, view))


def open_account(event: EventEnvelope[Signed]) -> list[Send]:
    return [Send(COMMANDS, event.data.account_id, OpenAccount())]


def a_policy(before: Service) -> Service:
    """A policy and a source are new."""
    policy = Policy(open_account, source=SIGNED, events=(Signed,), commands={COMMANDS: [OpenAccount]}, from_start=True)
    return replace(before, policies=(*before.policies, policy))


class AccountChargedIn(Event):
    """Version 2 was always in euro."""

    TYPE = "account.charged"
    VERSION = 3

    amount_cents: int
    currency: str


def a_version(before: Service) -> Service:
    """An event is written in version 3."""

    def as_before(event: Event) -> Any:
        return AccountCharged(amount_cents=event.amount_cents) if isinstance(event, AccountChargedIn) else event

    def now(event: AccountEvent) -> Any:
        return AccountChargedIn(**dict(event), currency="CHF") if isinstance(event, AccountCharged) else event

    def decide(command: AccountCommand, account: Account) -> list[Any]:
        return [now(event) for event in domain.decide(command, account)]

    decider = before.decider
    assert decider is not None
    changed: Decider[Any, Any, Any] = replace(
        decider,
        decide=decide,
        evolve=lambda account, event: decider.evolve(account, as_before(event)),
        events=tuple(AccountChargedIn if each is AccountCharged else each for each in decider.events),
        upcasters={**decider.upcasters, ("account.charged", 2): lambda data: {**data, "currency": "EUR"}},
    )
    return replace(before, decider=changed)


class ChargedFor(AccountCharged):
    reason: str | None = None


class OpenFor(Open):
    reason: str | None = None


def a_field(before: Service) -> Service:
    """An event and a state have got a field."""
    decider = before.decider
    assert decider is not None

    def decide(command: AccountCommand, account: Account) -> list[Any]:
        return [
            ChargedFor(**dict(event), reason=f"of {event.amount_cents}") if isinstance(event, AccountCharged) else event
            for event in domain.decide(command, account)
        ]

    def evolve(account: Any, event: Any) -> Any:
        state = decider.evolve(account, event)
        if not isinstance(state, Open):
            return state
        reason = getattr(event, "reason", None) or getattr(account, "reason", None)
        return OpenFor(**{**dict(state), "reason": reason})

    changed: Decider[Any, Any, Any] = replace(
        decider,
        decide=decide,
        evolve=evolve,
        events=tuple(ChargedFor if each is AccountCharged else each for each in decider.events),
        state=Annotated[Unopened | OpenFor | Closed, Field(discriminator="phase")],
    )
    return replace(before, decider=changed)


def a_view_and_a_policy(before: Service) -> Service:
    return a_policy(a_view(before))


def all_at_once(before: Service) -> Service:
    """All that can be together."""
    return a_field(a_view_and_a_policy(before))


Change = Callable[[Service], Service]
CHANGES: dict[str, Change] = {
    each.__name__: each for each in (a_view, a_policy, a_view_and_a_policy, a_version, a_field, all_at_once)
}


def command(change: Change) -> list[str]:
    """The command that runs a worker of accounts with this change."""
    python, _, _, *options = faust_command(TOPOLOGY.service, "tests")
    return [python, "-m", "tests.releases.changes", change.__name__, *options]


if __name__ == "__main__":
    service.SERVICE = CHANGES[sys.argv.pop(1)](service.SERVICE)
    assert service.SERVICE.decider is not None
    domain.DECIDER = service.SERVICE.decider  # for the routes, which are made of it
    cli()
