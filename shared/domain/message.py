"""Messages: events and commands, as frozen models that carry their wire name and version."""

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from inspect import isclass
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, RootModel
from pydantic.errors import PydanticUserError

from shared.domain.personal import personal_fields

Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""An integer from -2**63 to 2**63 - 1, which every reader of JSON or Parquet can represent."""


class Part(BaseModel):
    """The base class of a model inside a message. It is as strict as a message, because pydantic does not hand the
    outer model's configuration down.

    In a command, declare it as `class Line(Part, extra="forbid")`, so that no field is ignored there either; a Decider
    raises ValueError for one that ignores fields.
    """

    # strict: "5" and 5.0 are not the int 5; a wrong type is refused instead of guessed at
    # keys: pydantic's parser caches strings, and values hardly ever repeat
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, cache_strings="keys")


class Message(Part):
    """The base class of Event and Command.

    TYPE is the name on the wire, such as "account.opened", and never changes. VERSION counts from 1, and goes up with
    every change but a new field that has a default. An older reader ignores such a field of an event, and refuses a
    command that has one, so release readers before senders.

    SAME_SINCE is for a reader of another service's message: the version since which the fields that it declares are the
    same, in name, type and meaning. Only versions before that need an upcaster. By default that is VERSION.

    Fields are strict, and FastAPI validates a body as Python objects, in which a JSON array is a list and all text is a
    str. So a tuple, enum, UUID, Decimal, timedelta, time, bytes or Path in a command over HTTP, an inner one too, needs
    `Annotated[X, Field(strict=False)]`, or every request gets 422. A set has no order, so its JSON would differ by
    process: use a sorted tuple. For a day use Day, for an instant Instant, for text about a person Personal, for an
    inner model the base Part.
    """

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1
    SAME_SINCE: ClassVar[int] = 0

    @classmethod
    def same_since(cls) -> int:
        return cls.SAME_SINCE or cls.VERSION


class Event(Message):
    """The base class of events. An event says what has happened, and is named in the past tense.

    Fields that a reader does not know are ignored, so that an older reader survives a new field.
    """

    model_config = ConfigDict(extra="ignore")


class Command(Message):
    """The base class of commands. A command says what somebody wants, and is named in the imperative.

    Fields that a reader does not know are refused, so that a command is never half understood. `decide` has no clock: a
    time that matters is a field, which the client sends. A route must not fill it in, because a repeated request would
    then be another command, and be answered 409.
    """

    model_config = ConfigDict(extra="forbid")


def check_types(messages: Sequence[type[Message]]) -> None:
    """Raises ValueError unless there are messages, each with its own TYPE, whose personal parts can be encrypted, and
    whose SAME_SINCE is a version that there is.
    """
    if not messages:
        raise ValueError("no message types: get_args() of a single class is empty, so write (TheClass,)")
    if nameless := [each.__name__ for each in messages if not hasattr(each, "TYPE")]:
        raise ValueError(f"messages without a TYPE: {nameless}: give each a wire name, such as TYPE = 'order.placed'")
    types = [each.TYPE for each in messages]
    if alike := [each.__name__ for each in messages if types.count(each.TYPE) > 1]:
        raise ValueError(f"messages that share a TYPE: {alike}: give each its own")
    for each in messages:
        if not 0 <= each.SAME_SINCE <= each.VERSION:
            versions = f"SAME_SINCE = {each.SAME_SINCE} is none of its versions"
            raise ValueError(f"{each.__name__}: {versions}; fix: 1 to {each.VERSION}, its VERSION, or leave it out")
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
