"""Later releases of the tests' own accounts, each a change of what is declared, and a worker of one of them:
`python -m tests.releases.changes CHANGE ARGUMENTS OF FAUST`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from faust.cli.faust import cli
from pydantic import Field

from shared.dev.worker import faust_command
from shared.domain import Command, Decider, Event, EventEnvelope, Personal, State
from shared.domain.upcasting import Upcaster
from shared.topology import Policy, Projection, Send, Service, Table, Topic
from tests.accounts import service
from tests.accounts import topology as declared
from tests.accounts.domain import commands
from tests.accounts.domain import decide as domain
from tests.accounts.domain.commands import AccountCommand, Charge, OpenAccount
from tests.accounts.domain.events import AccountCharged, AccountOpened
from tests.accounts.domain.state import Account, Closed, Open, Unopened
from tests.accounts.topology import ACCOUNTS, COMMANDS, TOPOLOGY

Fields = Callable[[dict[str, Any]], dict[str, Any]]

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


def _decider(before: Service) -> Decider[Any, Any, Any]:
    assert before.decider is not None
    return before.decider


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


def _rewritten(
    before: Service,
    former: type[Event],
    latter: type[Event],
    *,
    now: Fields,
    then: Fields,
    read: Upcaster | None = None,
) -> Service:
    """An event is written in another version, or with other fields.

    now: what it is made of, of the fields of the former. then: the other way round. read: what was written before.
    """
    decider = _decider(before)

    def decide(command: Any, account: Any) -> list[Any]:
        events = decider.decide(command, account)
        return [latter(**now(dict(each))) if isinstance(each, former) else each for each in events]

    def evolve(account: Any, event: Any) -> Any:
        return decider.evolve(account, former(**then(dict(event))) if isinstance(event, latter) else event)

    upcasters = {} if read is None else {(former.TYPE, former.VERSION): read}
    changed: Decider[Any, Any, Any] = replace(
        decider,
        decide=decide,
        evolve=evolve,
        events=tuple(latter if each is former else each for each in decider.events),
        upcasters={**decider.upcasters, **upcasters},
    )
    return replace(before, decider=changed)


def _without(name: str) -> Fields:
    return lambda fields: {each: value for each, value in fields.items() if each != name}


def _renamed(one: str, other: str) -> Fields:
    return lambda fields: {other if each == one else each: value for each, value in fields.items()}


class AccountChargedIn(Event):
    """Version 2 was always in euro."""

    TYPE = "account.charged"
    VERSION = 3

    amount_cents: int
    currency: str


def a_version(before: Service) -> Service:
    """An event is written in version 3, with one more field that it must have."""
    return _rewritten(
        before,
        AccountCharged,
        AccountChargedIn,
        now=lambda fields: {**fields, "currency": "CHF"},
        then=_without("currency"),
        read=lambda fields: {**fields, "currency": "EUR"},
    )


class AccountOpenedUpTo(Event):
    TYPE = "account.opened"
    VERSION = 2

    holder: Personal = None
    limit_cents: int | None = None


def a_renamed_field(before: Service) -> Service:
    now, then = _renamed("order_limit_cents", "limit_cents"), _renamed("limit_cents", "order_limit_cents")
    return _rewritten(before, AccountOpened, AccountOpenedUpTo, now=now, then=then, read=now)


class AccountOpenedFor(Event):
    TYPE = "account.opened"
    VERSION = 2

    holder: Personal = None


def a_removed_field(before: Service) -> Service:
    now = _without("order_limit_cents")
    return _rewritten(before, AccountOpened, AccountOpenedFor, now=now, then=dict, read=now)


class ChargeFor(Charge):
    VERSION = 2

    reason: str = ""


def a_command_version(before: Service) -> Service:
    """A command is taken in version 2. Callers that don't know of it go on as before."""
    decider = _decider(before)
    changed: Decider[Any, Any, Any] = replace(
        decider,
        commands=tuple(ChargeFor if each is Charge else each for each in decider.commands),
        upcasters={**decider.upcasters, ("account.charge", 1): dict},
    )
    return replace(before, decider=changed)


class Greet(Command):
    TYPE = "account.greet"


class AccountGreeted(Event):
    TYPE = "account.greeted"


class Greeted(Unopened):
    phase: Literal["greeted"] = "greeted"  # type: ignore[assignment]


def greet(event: EventEnvelope[Signed]) -> list[Send]:
    return [Send(COMMANDS, event.data.account_id, Greet())]


def a_command_an_event_and_a_phase(before: Service) -> Service:
    """Accounts are greeted, as a new policy wants it."""
    decider = _decider(before)

    def decide(command: Any, account: Any) -> list[Any]:
        return [AccountGreeted()] if isinstance(command, Greet) else [*decider.decide(command, account)]

    def evolve(account: Any, event: Any) -> Any:
        return Greeted() if isinstance(event, AccountGreeted) else decider.evolve(account, event)

    changed: Decider[Any, Any, Any] = replace(
        decider,
        decide=decide,
        evolve=evolve,
        commands=(*decider.commands, Greet),
        events=(*decider.events, AccountGreeted),
        state=Annotated[Unopened | Greeted | Open | Closed, Field(discriminator="phase")],
    )
    policy = Policy(greet, source=SIGNED, events=(Signed,), commands={COMMANDS: [Greet]}, from_start=True)
    return replace(before, decider=changed, policies=(*before.policies, policy))


def other_code(before: Service) -> Service:
    """Nothing that is declared changes."""
    decider = _decider(before)
    return replace(before, decider=replace(decider, decide=lambda *given: [*decider.decide(*given)]))


def an_index(before: Service) -> Service:
    indexed = replace(ACCOUNTS, indexes=(*ACCOUNTS.indexes, ("phase", "balance_cents")))
    return replace(before, topology=replace(before.topology, tables=(indexed,)))


def no_history(before: Service) -> Service:
    return replace(before, topology=replace(before.topology, history=None))


def a_longer_memory(before: Service) -> Service:
    """Commands are known for two days."""
    return replace(before, topology=replace(before.topology, idempotency_hours=48))


class ChargedFor(AccountCharged):
    reason: str | None = None


class OpenFor(Open):
    reason: str | None = None


def a_field(before: Service) -> Service:
    """An event and a state have got a field."""
    decider = _decider(before)

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


def command(change: Change | None) -> list[str]:
    """The command that runs a worker of accounts with this change, or of the present release."""
    present = faust_command(TOPOLOGY.service, "tests")
    python, _, _, *options = present
    return [python, "-m", "tests.releases.changes", change.__name__, *options] if change else present


if __name__ == "__main__":
    service.SERVICE = changed = globals()[sys.argv.pop(1)](service.SERVICE)
    # for the routes, which are made of them
    domain.DECIDER, declared.ACCOUNTS = changed.decider, changed.topology.tables[0]
    commands.Charge = next(each for each in changed.decider.commands if each.TYPE == Charge.TYPE)  # type: ignore[misc]
    cli()
