"""A decider's test as a sentence: given the past, when a command comes, then these events follow.

given = Scenario(DECIDER)
given(AccountOpened()).when(Charge(amount_cents=2999)).then(AccountCharged(amount_cents=2999))
"""

from dataclasses import dataclass
from typing import Generic

from shared.es.decider import Decider, fold
from shared.es.envelope import C, E
from shared.es.errors import DomainError
from shared.es.row import S


@dataclass(frozen=True, slots=True)
class Scenario(Generic[C, E, S]):
    """Called with the events so far, starts a sentence about `decider`."""

    decider: Decider[C, E, S]

    def __call__(self, *past: E) -> "Given[C, E, S]":
        return Given(self.decider, fold(self.decider.evolve, past, self.decider.initial))


@dataclass(frozen=True, slots=True)
class Given(Generic[C, E, S]):
    """An aggregate with a past."""

    decider: Decider[C, E, S]
    state: S

    def when(self, command: C) -> "Decided[E]":
        try:
            return Decided(tuple(self.decider.decide(command, self.state)), None)
        except DomainError as refusal:
            return Decided((), refusal)


@dataclass(frozen=True, slots=True)
class Decided(Generic[E]):
    """What the command led to. Each `then` raises AssertionError unless it was so."""

    events: tuple[E, ...]
    refusal: DomainError | None

    def then(self, *expected: E) -> None:
        """Exactly the `expected` events, in this order."""
        assert self.refusal is None, f"refused with {self._code}: {self.refusal}"
        assert self.events == expected, f"{self.events} instead of {expected}"

    def then_nothing(self) -> None:
        """Accepted, and it was already so."""
        self.then()

    def then_refused(self, code: str) -> None:
        """Refused with `code`."""
        assert self._code == code, f"{self._code or self.events} instead of a refusal with {code}"

    @property
    def _code(self) -> str | None:
        return self.refusal.code if self.refusal else None
