"""What the records of a commands topic must lead to, computed without any of the code under test."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.faults.log import Read

MOST_CENTS = 100_000_000
TOO_LARGE = "record.too_large"
KNOWN_MS = 24 * 3_600_000


Body = tuple[str, Any]
"""A command's type and data."""


class Fact(NamedTuple):
    """The part of an event that its command determines."""

    sequence: int
    type: str
    command_id: str
    amount_cents: int | None


class Outcome(NamedTuple):
    command_id: str
    sequence: int
    code: str | None


class RowFacts(NamedTuple):
    """A row. outcomes: the codes of commands that failed; offset: of the command that wrote it."""

    sequence: int
    phase: str
    balance_cents: int
    outcomes: Mapping[str, Any]
    offset: int


class Limits(NamedTuple):
    """What brokers refuse as too large: an event of this amount, rows of more events than these, by account, and rows
    that tell that a command failed, of these accounts.
    """

    amount_cents: int | None = None
    events: Mapping[str, int] = {}
    full: Collection[str] = ()

    def refuse_event(self, fact: Fact) -> bool:
        return fact.amount_cents is not None and fact.amount_cents == self.amount_cents

    def refuse_row(self, name: str, row: RowFacts) -> bool:
        return row.sequence > self.events.get(name, row.sequence) or (bool(row.outcomes) and name in self.full)


@dataclass(slots=True)
class Account:
    """Sequence, phase and balance after the commands so far. failed: the codes that its row keeps."""

    sequence: int = 0
    phase: str = "unopened"
    balance_cents: int = 0
    facts: list[Fact] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def row(self, offset: int) -> RowFacts:
        return RowFacts(self.sequence, self.phase, self.balance_cents, dict(self.failed), offset)


NO_LIMITS = Limits()


class Truth:
    """Fed with the records of the commands topic, partition by partition in order.

    outcomes: of commands that were decided, by account and command id; a day later, by the brokers' stamps, a repeat is
    decided again. decided: all of them.
    dead: places of records that could not be handled. parked: those that keep their place for a later release, and
    later records, by partition and key. reused: places of commands with the id of an earlier one, and another body.
    too_large: places of commands that lead to what brokers refuse; they are dead, too. failures: their outcomes.
    repeated: how many commands were repeats.
    """

    def __init__(self, limits: Limits = NO_LIMITS) -> None:
        self._limits = limits
        self.accounts: dict[str, Account] = {}
        self.places: dict[str, int] = {}
        self.rows: dict[str, dict[int, RowFacts]] = {}
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        self.decided: dict[tuple[str, str], list[Outcome]] = {}
        self.failures: dict[tuple[str, str], Outcome] = {}
        self.dead: set[tuple[int, int]] = set()
        self.too_large: set[tuple[int, int]] = set()
        self.reused: set[tuple[int, int]] = set()
        self._bodies: dict[tuple[str, str], tuple[Body, int]] = {}
        self._failed: dict[tuple[str, str], Body] = {}
        self.parked: dict[tuple[int, bytes], list[int]] = {}
        self.records = 0
        self.repeated = 0

    @property
    def facts(self) -> int:
        """How many events there must be."""
        return sum(len(account.facts) for account in self.accounts.values())

    def feed(self, partition: int, record: Read) -> None:
        self.records += 1
        offset, key, value = record.offset, record.key, record.value
        if key is not None and (partition, key) in self.parked:
            self.parked[partition, key].append(offset)
            return
        command = _understood(key, value)
        if command is None:
            self.dead.add((partition, offset))
            if key is not None and _is_of_later_release(value):
                self.parked[partition, key] = [offset]
            return
        name = command["aggregate_id"]
        account = self.accounts.setdefault(name, Account())
        assert self.places.setdefault(name, partition) == partition, f"{name} was sent to two partitions"
        id_ = name, command["command_id"]
        body = command["type"], command["data"]
        known = self._known(id_, record.timestamp)
        if known is not None:
            self.repeated += 1
            if known != body:
                self.reused.add((partition, offset))
            return
        before = account.sequence, account.phase, account.balance_cents
        outcome = _decided(account, command)
        if outcome.code is None and self._is_refused(name, account, offset):
            account.facts.pop()
            account.sequence, account.phase, account.balance_cents = before
            self._fail(name, account, command["command_id"])
            self.dead.add((partition, offset))
            self.too_large.add((partition, offset))
            if command["command_id"] not in account.failed:
                return
            self._failed[id_] = body
        else:
            self.outcomes[id_] = outcome
            self.decided.setdefault(id_, []).append(outcome)
            self._bodies[id_] = body, record.timestamp
        self.rows.setdefault(name, {})[offset] = account.row(offset)

    def _known(self, id_: tuple[str, str], timestamp: int) -> Body | None:
        """What an earlier record of these ids said, if that counts yet."""
        body, decided = self._bodies.get(id_, (None, 0))
        return body if body is not None and timestamp - decided <= KNOWN_MS else self._failed.get(id_)

    def _is_refused(self, name: str, account: Account, offset: int) -> bool:
        return self._limits.refuse_event(account.facts[-1]) or self._limits.refuse_row(name, account.row(offset))

    def _fail(self, name: str, account: Account, command_id: str) -> None:
        """Its row keeps the outcome, if that fits; else a repeat is decided again."""
        self.failures[name, command_id] = Outcome(command_id, account.sequence, TOO_LARGE)
        if name not in self._limits.full:
            account.failed[command_id] = TOO_LARGE


def _understood(key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """The command; None for a record that has to become a dead letter."""
    try:
        command = json.loads((value or b"").decode())
    except ValueError:
        return None
    if command["type"] not in _RULES or key is None or key != command["aggregate_id"].encode():
        return None
    return dict(command)


def _is_of_later_release(value: bytes | None) -> bool:
    try:
        return json.loads((value or b"").decode())["type"] not in _RULES
    except ValueError:
        return False


def _decided(account: Account, command: Mapping[str, Any]) -> Outcome:
    amount = command["data"].get("amount_cents")
    code = _RULES[command["type"]](account, amount)
    if code is None:
        account.sequence += 1
        fact = Fact(account.sequence, _EVENTS[command["type"]], command["command_id"], amount)
        account.facts.append(fact)
    return Outcome(command["command_id"], account.sequence, code)


def _open(account: Account, _: int) -> str | None:
    match account.phase:
        case "open":
            return "account.already_open"
        case "closed":
            return "account.closed"
    account.phase = "open"
    return None


def _greet(account: Account, _: int) -> None:
    """Known to a later release: tests.releases.changes."""
    account.phase = "greeted"


def _charge(account: Account, amount: int) -> str | None:
    code = _not_open(account) or _senseless(amount)
    account.balance_cents += 0 if code else amount
    return code


def _pay(account: Account, amount: int) -> str | None:
    code = _not_open(account) or _senseless(amount) or ("account.overpaid" if amount > account.balance_cents else None)
    account.balance_cents -= 0 if code else amount
    return code


def _close(account: Account, _: int) -> str | None:
    code = _not_open(account) or ("account.owes" if account.balance_cents else None)
    if code is None:
        account.phase = "closed"
    return code


def _not_open(account: Account) -> str | None:
    if account.phase == "open":
        return None
    return "account.closed" if account.phase == "closed" else "account.unknown"


def _senseless(amount: int) -> str | None:
    if amount <= 0:
        return "account.amount_not_positive"
    return "account.amount_too_large" if amount > MOST_CENTS else None


_RULES = {
    "account.open": _open,
    "account.charge": _charge,
    "account.pay": _pay,
    "account.close": _close,
    "account.greet": _greet,
}
_EVENTS = {
    "account.open": "account.opened",
    "account.charge": "account.charged",
    "account.pay": "account.payment_received",
    "account.close": "account.closed",
    "account.greet": "account.greeted",
}
_PHASES = {"account.closed": "closed", "account.greeted": "greeted"}
_SIGNS = {"account.charged": 1, "account.payment_received": -1}


def states_after(facts: Iterable[Fact]) -> list[tuple[str, int]]:
    """Phase and balance before the first fact, and after each."""
    states = [("unopened", 0)]
    for fact in facts:
        change = _SIGNS.get(fact.type, 0) * (fact.amount_cents or 0)
        states.append((_PHASES.get(fact.type, "open"), states[-1][1] + change))
    return states


def fact_of(event: bytes) -> Fact:
    """The fact in a record of the events topic."""
    return fact_in(json.loads(event))


def fact_in(body: Mapping[str, Any]) -> Fact:
    """The fact in an event."""
    return Fact(body["sequence"], body["type"], body["causation_id"], body["data"].get("amount_cents"))


def facts_of(row: bytes) -> RowFacts:
    """The row in a changelog record."""
    body = json.loads(row)
    state = body["state"]
    outcomes = {id_: recorded[2] for id_, recorded in body["outcomes"].items()}
    return RowFacts(body["sequence"], state["phase"], state.get("balance_cents", 0), outcomes, body["offset"])


def outcome_of(key: bytes, row: bytes) -> tuple[tuple[str, str], Outcome]:
    """Account and command, and what became of it, in a record of the outcomes' changelog."""
    name, _, command_id = key.decode().partition("\0")
    body = json.loads(row)
    return (name, command_id), Outcome(command_id, body["sequence"], body.get("code"))
