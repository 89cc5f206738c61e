"""A decider's test as a sentence: given the past, when a command comes, then these events follow.

given = Scenario(DECIDER)
given(AccountOpened()).when(Charge(amount_cents=2999)).then(AccountCharged(amount_cents=2999))

Every event is folded. The sentence fails if `decide` or `evolve` changes the state it is given, if a state or a message
is not read from its JSON as it was, and if the decider does not declare a message.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from shared.es.decider import Decider, fold
from shared.es.envelope import C, E
from shared.es.errors import DomainError, first_problem
from shared.es.message import Message
from shared.es.row import Row, S

_READ_AS = "is read from its JSON as"
_FIX = "fix: declare the type that was given, such as tuple instead of Sequence, or give a union a discriminator"


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

    def when(self, command: C) -> "Decided[E]":
        _check_message(command, self.decider.commands, "commands")
        before = to_json(self.state)
        try:
            events = tuple(self.decider.decide(command, self.state))
        except DomainError as refusal:
            return Decided((), refusal)
        finally:
            _check_unchanged(self.state, before, "decide", command)
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
        _check_message(event, decider.events, "events")
        before = to_json(state)
        after = decider.evolve(state, event)
        _check_unchanged(state, before, "evolve", event)
        _check_names(after, event)
        try:
            read = decider.row_codec.decode_whole(decider.row_codec.encode(Row(0, after, {}, -1))).state
        except ValidationError as error:
            raise AssertionError(
                f"no row can hold the state after {event!r}: {first_problem(error)}; fix: let `decide` refuse the "
                f"command, or widen the type"
            ) from None
        assert _same(read, after), f"the state after {event!r} is {after!r}, and {_READ_AS} {read!r}; {_FIX}"
        return after

    return fold(evolve, events, start)


def _check_unchanged(state: object, before: bytes, function: str, given: Message) -> None:
    fix = "fix: make new lists and dicts, as in [*old, new]"
    assert to_json(state) == before, f"{function} changed the state it was given ({given!r}); {fix}"


def _check_names(state: object, event: Message) -> None:
    if isinstance(state, BaseModel):
        kind = type(state)
        others = vars(state).keys() - kind.model_fields.keys()
        unknown = [name for name in others if not isinstance(getattr(kind, name, None), cached_property)]
        assert not unknown, f"the state after {event!r} has no field {unknown[0]}; fix: correct the name in model_copy"


def _check_message(message: Message, declared: Iterable[type[Message]], where: str) -> None:
    name = type(message).__name__
    assert type(message) in declared, f"a worker would refuse {name}; fix: add it to the `{where}` of the Decider"
    try:
        read = type(message).model_validate_json(to_json(message))
    except ValidationError as error:
        raise AssertionError(f"nobody can read {message!r}: {first_problem(error)}; {_FIX}") from None
    assert _same(read, message), f"{message!r} {_READ_AS} {read!r}; {_FIX}"


def _same(read: Any, written: Any) -> bool:
    """Whether they are equal and of the same types at every depth; `==` takes a StrEnum for a str, and 1 for 1.0."""
    if type(read) is not type(written):
        return False
    match written:
        case BaseModel():
            return all(_same(getattr(read, name), getattr(written, name)) for name in type(written).model_fields)
        case dict():
            return bool(read.keys() == written.keys()) and all(_same(read[key], written[key]) for key in written)
        case list() | tuple():
            return len(read) == len(written) and all(map(_same, read, written))
        case _:
            return bool(read == written)
