"""The JSON body of every record on a commands or events topic, and its way to bytes and back.

A current message is one pass of one compiled validator. Only what it refuses is looked at again, to upcast it
or to say what is wrong.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import from_json, to_json

from shared.es.errors import BadMessage, UnknownType
from shared.es.ids import AggregateId, MessageId
from shared.es.message import Command, Event, Message
from shared.es.times import Instant
from shared.es.upcasting import Upcasters, check_upcasters, upcast

C = TypeVar("C", bound=Command)
E = TypeVar("E", bound=Event)
Envelope = TypeVar("Envelope", bound=BaseModel)


# pydantic's parser remembers strings; ids hardly ever come again, and to remember them costs a tenth of the fold
_ONLY_KEYS = ConfigDict(cache_strings="keys")


class EventEnvelope(BaseModel, Generic[E]):
    """An event and its place: number `sequence` of its aggregate, from 1 and without a gap.

    `occurred_at` is when the command was issued. `correlation_id` names the whole story, `causation_id` the
    message that caused this one.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", **_ONLY_KEYS)

    event_id: MessageId
    type: str
    schema_version: int
    aggregate_id: str
    sequence: Annotated[int, Field(ge=1)]
    occurred_at: Instant
    correlation_id: MessageId
    causation_id: MessageId | None = None
    data: E


class CommandEnvelope(BaseModel, Generic[C]):
    """A command and the aggregate it is for; its `command_id` makes a repeat recognisable."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", **_ONLY_KEYS)

    command_id: MessageId
    type: str
    schema_version: int
    aggregate_id: AggregateId
    issued_at: Instant
    correlation_id: MessageId
    causation_id: MessageId | None = None
    data: C


class _Codec(Generic[Envelope]):
    """Raises ValueError when two types share a name or a version cannot be upcast."""

    def __init__(self, envelope: Any, messages: Sequence[type[Message]], upcasters: Upcasters) -> None:
        check_upcasters(messages, upcasters)
        envelopes: dict[str, Any] = {message.TYPE: _envelope_of(envelope, message) for message in messages}
        if len(envelopes) < len(messages):
            raise ValueError(f"types that share a name: {sorted(message.TYPE for message in messages)}")
        self._upcasters = upcasters
        self._versions = {message.TYPE: message.VERSION for message in messages}
        self._envelopes: dict[str, Callable[..., Envelope]] = envelopes
        self._validate: Callable[[bytes], Envelope] = _one_of(*envelopes.values()).validator.validate_json

    def decode(self, raw: bytes | None) -> Envelope:
        """The envelope `raw` holds, its data in the current version. Raises BadMessage."""
        if raw is None:
            raise BadMessage("no value")
        try:
            return self._validate(raw)
        except ValidationError as refusal:
            return self._decode_older(raw, refusal)

    def encode(self, envelope: Envelope) -> bytes:
        """Compact JSON, the fields in their declared order."""
        return to_json(envelope)

    def _decode_older(self, raw: bytes, refusal: ValidationError) -> Envelope:
        fields = _json_object(raw)
        name, version, data = fields.get("type"), fields.get("schema_version"), fields.get("data")
        if not isinstance(name, str):
            raise BadMessage("type: not a string")
        if name not in self._versions:
            raise UnknownType(name)
        current = self._versions[name]
        if type(version) is not int or not 1 <= version < current or not isinstance(data, dict):
            raise BadMessage(_reason(refusal))
        fields["data"] = upcast(name, version, current, data, self._upcasters)
        fields["schema_version"] = current
        try:
            return self._validate(to_json(fields))
        except ValidationError as error:
            raise BadMessage(f"upcast from version {version}: {_reason(error)}") from None


# The base's argument is a string: pydantic's EventEnvelope[E] is a class, in which typing would not find E.
class EventCodec(_Codec["EventEnvelope[E]"], Generic[E]):
    """Reads and writes the events of `event_types`; older versions are read through `upcasters`."""

    def __init__(self, event_types: Sequence[type[E]], upcasters: Upcasters | None = None) -> None:
        super().__init__(EventEnvelope, event_types, upcasters or {})
        self._types = frozenset(event_types)

    def write(
        self,
        event: E,
        *,
        event_id: str,
        aggregate_id: str,
        sequence: int,
        occurred_at: datetime,
        correlation_id: str,
        causation_id: str | None = None,
    ) -> bytes:
        """The bytes of `event` in its envelope, of which no more is checked: it comes from a command that was.

        Raises TypeError for an event that is not declared.
        """
        if type(event) not in self._types:
            raise TypeError(f"{type(event).__name__} is not declared")
        return to_json(
            {
                "event_id": event_id,
                "type": event.TYPE,
                "schema_version": event.VERSION,
                "aggregate_id": aggregate_id,
                "sequence": sequence,
                "occurred_at": occurred_at,
                "correlation_id": correlation_id,
                "causation_id": causation_id,
                "data": event,
            }
        )


class CommandCodec(_Codec["CommandEnvelope[C]"], Generic[C]):
    """Reads and writes the commands of `command_types`; older versions are read through `upcasters`."""

    def __init__(self, command_types: Sequence[type[C]], upcasters: Upcasters | None = None) -> None:
        super().__init__(CommandEnvelope, command_types, upcasters or {})

    def wrap(
        self,
        command: C,
        *,
        command_id: str,
        aggregate_id: str,
        issued_at: datetime,
        correlation_id: str | None = None,
        causation_id: str | None = None,
    ) -> CommandEnvelope[C]:
        """`command` in its envelope; without `correlation_id` it starts a story of its own."""
        return self._envelopes[command.TYPE](
            command_id=command_id,
            type=command.TYPE,
            schema_version=command.VERSION,
            aggregate_id=aggregate_id,
            issued_at=issued_at,
            correlation_id=correlation_id or command_id,
            causation_id=causation_id,
            data=command,
        )


def _envelope_of(envelope: Any, message: type[Message]) -> type[BaseModel]:
    """The envelope that holds exactly this message in its current version."""
    fields: dict[str, Any] = {
        "type": (Literal[message.TYPE], ...),
        # bounds and not a Literal, which would take true for 1
        "schema_version": (Annotated[int, Field(ge=message.VERSION, le=message.VERSION)], ...),
    }
    model: type[BaseModel] = create_model(f"{message.__name__}Envelope", __base__=envelope[message], **fields)
    return model


def _one_of(*envelopes: Any) -> TypeAdapter[Any]:
    if len(envelopes) == 1:
        return TypeAdapter(envelopes[0])
    union: Any = Annotated[reduce(or_, envelopes), Field(discriminator="type")]
    return TypeAdapter(union, config=_ONLY_KEYS)


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        fields = from_json(raw)
    except ValueError as error:
        raise BadMessage(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadMessage("not a JSON object")
    return fields


def _reason(refusal: ValidationError) -> str:
    first = refusal.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
