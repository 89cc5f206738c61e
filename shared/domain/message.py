"""Messages: facts and intents, as frozen models that carry their wire name and version."""

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from inspect import isclass
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, RootModel
from pydantic.errors import PydanticUserError

from shared.domain.personal import personal_fields

Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""The integers that every reader of JSON or Parquet can represent."""


class Part(BaseModel):
    """A model inside a message, which is as strict as its message: pydantic does not hand a configuration down.

    In a command it must be a `class Line(Part, extra="forbid")`, so that no field is ignored there either.
    """

    # strict: "5" and 5.0 are not the int 5; a wrong type is refused instead of guessed at
    # keys: pydantic's parser caches strings, and values hardly ever repeat
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, cache_strings="keys")


class Message(Part):
    """TYPE is the wire name and never changes; VERSION goes up with every change except a new optional field.

    An older reader ignores a new field of an event, and refuses a command that has one: release readers before senders.

    Fields are strict, and FastAPI validates a body as Python objects, in which a JSON array is a list and all text is a
    str. So a tuple, enum, UUID, Decimal, timedelta, time, bytes or Path in a command over HTTP, an inner one too, needs
    `Annotated[X, Field(strict=False)]`, or every request gets 422. A set has no order, so its JSON would differ by
    process: use a sorted tuple. For a day use Day, for an instant Instant, for text about a person Personal, for an
    inner model the base Part.
    """

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1


class Event(Message):
    """A fact, named in the past tense. Unknown fields are ignored, so an old reader survives a new field."""

    model_config = ConfigDict(extra="ignore")


class Command(Message):
    """An intent, named in the imperative. Unknown fields are refused, so a command is never half understood.

    `decide` has no clock: a time that matters is a field that the client sends. A route must not stamp it, because a
    repeated request would be another command, and get 409.
    """

    model_config = ConfigDict(extra="forbid")


def check_types(messages: Sequence[type[Message]]) -> None:
    """Raises ValueError unless there are messages, each with its own TYPE, whose personal parts can be encrypted."""
    if not messages:
        raise ValueError("no message types: get_args() of a single class is empty, so write (TheClass,)")
    if nameless := [each.__name__ for each in messages if not hasattr(each, "TYPE")]:
        raise ValueError(f"messages without a TYPE: {nameless}: give each a wire name, such as TYPE = 'order.placed'")
    types = [each.TYPE for each in messages]
    if alike := [each.__name__ for each in messages if types.count(each.TYPE) > 1]:
        raise ValueError(f"messages that share a TYPE: {alike}: give each its own")
    for each in messages:
        with suppress(PydanticUserError):  # not complete yet: whoever reads or writes it hears from pydantic
            personal_fields(each)


def check_parts(commands: Iterable[type[Command]]) -> None:
    """Raises ValueError for a command with a part, at any depth, that ignores unknown fields."""
    for command in commands:
        for part in _models(command):
            if part.model_config.get("extra", "ignore") == "ignore" and not issubclass(part, RootModel):
                name = part.__name__
                fix = f'class {name}(Part, extra="forbid")'
                raise ValueError(f"{command.__name__}: {name} inside it ignores unknown fields; fix: {fix}")


def _models(type_: Any, known: Set[Any] = frozenset()) -> Iterator[type[BaseModel]]:
    """The models that it consists of, itself included."""
    if isclass(type_) and issubclass(type_, BaseModel) and type_ not in known:
        yield type_
        for field in type_.model_fields.values():
            yield from _models(field.annotation, known | {type_})
    for part in get_args(type_):
        yield from _models(part, known)
