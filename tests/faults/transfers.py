"""Transfers between accounts: what is debited at one is credited at another, and no reader finds a cent missing."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from tests.accounts.topology import EVENTS
from tests.faults.log import Arrived
from tests.faults.truth import Fact, fact_of

FUNDS_CENTS = 10_000
MOST_CENTS = 5_000
REPEATED = 0.1
RECENT = 50  # commands that may be repeated: of an account these are fewer than the outcomes that a row keeps
_SIGNS = {"account.charged": 1, "account.payment_received": -1}


class Order(NamedTuple):
    """A command to an account. A transfer's two have one number: `debit-7` and `credit-7`."""

    name: str
    command_id: str
    type: str
    data: dict[str, int]


class Transfers:
    """What a process that transfers sends: the credit only when it has read that the debit took place.

    arrived: all that was read so far; it grows meanwhile. credits: how many were handed out.
    """

    def __init__(self, names: Sequence[str], arrived: Sequence[Arrived]) -> None:
        self.names = names
        self.credits = 0
        self._arrived = arrived
        self._read = 0
        self._numbers = count(1)
        self._targets: dict[str, str] = {}
        self._due: deque[Order] = deque()
        self._recent: deque[Order] = deque(maxlen=RECENT)
        for name in names:
            self._due.append(Order(name, f"open-{name}", "account.open", {}))
            self._due.append(Order(name, f"fund-{name}", "account.charge", {"amount_cents": FUNDS_CENTS}))

    def next_order(self, chance: random.Random) -> Order:
        """Sometimes one of the latest again."""
        if self._recent and chance.random() < REPEATED:
            return chance.choice(self._recent)
        self._look()
        order = self._due.popleft() if self._due else self._debit(chance)
        self.credits += order.command_id.startswith("credit-")
        self._recent.append(order)
        return order

    def _debit(self, chance: random.Random) -> Order:
        """It is refused if the account has less."""
        source, target = chance.sample(self.names, 2)
        number = str(next(self._numbers))
        self._targets[number] = target
        return Order(source, f"debit-{number}", "account.pay", {"amount_cents": chance.randint(1, MOST_CENTS)})

    def _look(self) -> None:
        """Each debit that was read since the last look makes its credit due."""
        read, self._read = self._read, len(self._arrived)
        for _, fact in _facts(self._arrived[read : self._read], self.names):
            kind, _, number = fact.command_id.partition("-")
            if kind == "debit" and number in self._targets:
                data = {"amount_cents": fact.amount_cents or 0}
                self._due.append(Order(self._targets.pop(number), f"credit-{number}", "account.charge", data))


class Books:
    """Balances, and the amounts that are debited and not credited yet, by the transfer's number."""

    def __init__(self) -> None:
        self.balances = Counter[str]()
        self.in_flight: dict[str, int] = {}
        self.completed = 0
        self._there = 0
        self._begun: set[str] = set()
        self._funded: set[str] = set()

    @property
    def missing(self) -> int:
        """Cents that the accounts were given and that are in no account and not in flight; negative: too much."""
        return len(self._funded) * FUNDS_CENTS - self._there

    def enter(self, name: str, fact: Fact) -> None:
        kind, _, number = fact.command_id.partition("-")
        amount = fact.amount_cents or 0
        change = _SIGNS.get(fact.type, 0) * amount
        self.balances[name] += change
        self._there += change
        if kind == "fund":
            self._funded.add(name)
        elif kind == "debit" and number not in self._begun:
            self._begun.add(number)
            self.in_flight[number] = amount
            self._there += amount
        elif kind == "credit" and number in self.in_flight:
            self._there -= self.in_flight.pop(number)
            self.completed += 1


def wrong_totals(books: Books, arrived: Iterable[Arrived], names: Sequence[str]) -> Iterator[str]:
    """Each event with which, for a reader, cents vanish or appear, or after which a balance is negative."""
    missing = books.missing
    for name, fact in _facts(arrived, names):
        books.enter(name, fact)
        if books.missing != missing:
            yield f"total of transfers: {missing - books.missing:+} cents by {fact} of {name}"
            missing = books.missing
        if books.balances[name] < 0:
            yield f"balance of {name}: {books.balances[name]} after {fact}"


def _facts(arrived: Iterable[Arrived], names: Sequence[str]) -> Iterator[tuple[str, Fact]]:
    """The events of these accounts, in the order in which they were read."""
    wanted = {name.encode(): name for name in names}
    for (topic, _), read in arrived:
        if topic == EVENTS.name and read.key in wanted:
            yield wanted[read.key], fact_of(read.value or b"")
