"""What every sentence about a decider or a projection also checks, so that no worker meets it first."""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from shared.domain.errors import first_problem
from shared.domain.message import Message
from shared.domain.row import Row, RowCodec, S

_READ_AS = "is read from its JSON as"
_FIX = "fix: declare the type that was given, such as tuple instead of Sequence, or give a union a discriminator"


def next_state(
    codec: RowCodec[S], function: str, state: S, event: Message, change: Callable[[], S], *, may_end: bool = False
) -> S:
    """What `change`, the call of the function so named, makes of `state`. Raises AssertionError for one with a bug.

    may_end: whether None is for no row.
    """
    before = to_json(state)
    after = change()
    check_unchanged(state, before, function, event)
    if after is None and may_end:
        return after
    _check_names(after, event)
    try:
        read = codec.decode_whole(codec.encode(Row(0, after, {}, -1))).state
    except ValidationError as error:
        raise AssertionError(
            f"no row can hold the state after {event!r}: {first_problem(error)}; fix: widen the type, or let `decide` "
            f"refuse the command"
        ) from None
    assert _same(read, after), f"the state after {event!r} is {after!r}, and {_READ_AS} {read!r}; {_FIX}"
    return after


def check_unchanged(state: object, before: bytes, function: str, given: Message) -> None:
    fix = "fix: make new lists and dicts, as in [*old, new]"
    assert to_json(state) == before, f"{function} changed the state it was given ({given!r}); {fix}"


def check_message(message: Message, declared: Iterable[type[Message]], where: str) -> None:
    """where: the field in which the decider or the projection declares its messages."""
    name = type(message).__name__
    assert type(message) in declared, f"a worker would not handle {name}; fix: add it to {where}"
    try:
        read = type(message).model_validate_json(to_json(message))
    except ValidationError as error:
        raise AssertionError(f"nobody can read {message!r}: {first_problem(error)}; {_FIX}") from None
    assert _same(read, message), f"{message!r} {_READ_AS} {read!r}; {_FIX}"


def _check_names(state: object, event: Message) -> None:
    if isinstance(state, BaseModel):
        kind = type(state)
        others = vars(state).keys() - kind.model_fields.keys()
        unknown = [name for name in others if not isinstance(getattr(kind, name, None), cached_property)]
        assert not unknown, f"the state after {event!r} has no field {unknown[0]}; fix: correct the name in model_copy"


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
