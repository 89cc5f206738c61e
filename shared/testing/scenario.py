"""Tests of deciders and projections as sentences: given the past, when a command comes, then these events follow.

given = Scenario(DECIDER)
given(AccountOpened()).when(Charge(amount_cents=2999)).then(AccountCharged(amount_cents=2999))

sku = ViewScenario(PROJECTIONS, SKUS)
sku("abba", happened(OrderConfirmed(…))).shows(Totals(orders=1, …))

Every event is folded. A sentence fails if `decide`, `evolve` or `project` changes the state it is given, if a state or
a message is not read from its JSON as it was, and if the decider or the projection does not declare a message.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic

from pydantic_core import to_json

from shared.domain.decider import Decider, fold
from shared.domain.envelope import C, E, EventEnvelope
from shared.domain.errors import DomainError
from shared.domain.ids import derived_id
from shared.domain.row import S
from shared.testing.sentences import check_message, check_unchanged, next_state
from shared.topology.projection import Projection
from shared.topology.topics import Table

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Scenario(Generic[C, E, S]):
    """Called with the events so far, starts a sentence about `decider`."""

    decider: Decider[C, E, S]

    def __call__(self, *past: E) -> "Given[C, E, S]":
        return Given(self.decider, _folded(self.decider, past, self.decider.initial))


@dataclass(frozen=True, slots=True)
class Given(Generic[C, E, S]):
    """An aggregate with a past."""

    decider: Decider[C, E, S]
    state: S

    def when(self, command: C, *, aggregate_id: str = "a-1") -> "Decided[E]":
        check_message(command, self.decider.commands, "the `commands` of the Decider")
        before = to_json(self.state)
        try:
            self.decider.check_id(aggregate_id, command)
            events = tuple(self.decider.decide(command, self.state))
        except DomainError as refusal:
            return Decided((), refusal)
        finally:
            check_unchanged(self.state, before, "decide", command)
        _folded(self.decider, events, self.state)
        return Decided(events, None)


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


def history(decider: Decider[C, E, S], commands: Iterable[C]) -> list[E]:
    """The events of an aggregate that is given these commands in turn; a refused one has a code and leads to none."""
    past: list[E] = []
    state = decider.initial
    for command in commands:
        decided = Given(decider, state).when(command)
        assert decided.refusal is None or decided.refusal.code
        past += decided.events
        state = fold(decider.evolve, decided.events, state)
    return past


def _folded(decider: Decider[C, E, S], events: Iterable[E], start: S) -> S:
    def evolve(state: S, event: E) -> S:
        check_message(event, decider.events, "the `events` of the Decider")
        return next_state(decider.row_codec, "evolve", state, event, partial(decider.evolve, state, event))

    return fold(evolve, events, start)


@dataclass(frozen=True, slots=True)
class ViewScenario:
    """Called with a key and its events so far, starts a sentence about the one of `projections` that fills `table`."""

    projections: Sequence[Projection[Any, Any]]
    table: Table

    def __call__(self, key: str, *events: EventEnvelope[Any]) -> "Viewed":
        projection = next((each for each in self.projections if each.table == self.table), None)
        assert projection is not None, f"no projection fills {self.table.name}; fix: add one to PROJECTIONS"
        view, ends = projection.initial, projection.initial is None and self.table.ends
        for event in events:
            check_message(event.data, projection.events, "the `events` of the Projection")
            change = partial(projection.project, view, event, key)
            view = next_state(projection.row_codec, "project", view, event.data, change, may_end=ends)
        return Viewed(view)


@dataclass(frozen=True, slots=True)
class Viewed:
    """What the row of a key shows."""

    view: Any

    def shows(self, expected: object) -> None:
        """Raises AssertionError unless it is so."""
        assert self.view == expected, f"{self.view!r} instead of {expected!r}"


def happened(
    event: E, *, aggregate_id: str = "a-1", sequence: int = 1, occurred_at: datetime = NOON
) -> EventEnvelope[E]:
    """The event as a projection gets it."""
    return EventEnvelope(
        event_id=derived_id(aggregate_id, str(sequence)),
        type=event.TYPE,
        schema_version=event.VERSION,
        aggregate_id=aggregate_id,
        sequence=sequence,
        occurred_at=occurred_at,
        correlation_id="story",
        data=event,
    )
