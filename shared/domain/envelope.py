"""The JSON body of every record on a commands or events topic, with its encoding and decoding.

msgspec reads the envelope in a quarter of the time that pydantic takes; pydantic reads the message inside.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Annotated, Any, Generic, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.json import Decoder, Encoder
from msgspec.structs import force_setattr
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from shared.domain.errors import BadMessage, Unknown, UnknownType, first_problem
from shared.domain.ids import AggregateId, MessageId, check_aggregate_id, check_message_id
from shared.domain.message import Command, Event, Message, check_types
from shared.domain.upcasting import Upcasters, check_upcasters, upcast

C = TypeVar("C", bound=Command)
E = TypeVar("E", bound=Event)
E_co = TypeVar("E_co", bound=Event, covariant=True)
M = TypeVar("M", bound=Message)
Envelope = TypeVar("Envelope", bound="EventEnvelope[Any] | CommandEnvelope[Any]")

Positive = Annotated[int, Meta(ge=1)]
Expected = Annotated[int, Meta(ge=0, lt=10**18)] | UnsetType
Aware = Annotated[datetime, Meta(tz=True, extra_json_schema={"pattern": r"(Z|\+00:00)$"})]

_UNREADABLE = (ValueError, RecursionError)  # msgspec's own errors are ValueErrors; bytes outside UTF-8 raise Python's
_UNKNOWN_FIELD = "Object contains unknown field"  # msgspec's words
_NOT_UTC = "not at offset zero, so that text and time would sort differently"


class EventEnvelope(Struct, Generic[E_co], frozen=True, kw_only=True, gc=False):
    """An event, as policies and projections get it, with its place in the history of its aggregate.

    event_id        the same in every replay.
    type            the TYPE of its data. schema_version: the VERSION, always the current one, since `data` is upcast.
    aggregate_id    whose event it is. sequence: its number there, counted from 1 without a gap.
    occurred_at     the moment, in UTC, at which the command was issued that began the story.
    correlation_id  names the whole story. causation_id: the id of the message that caused this one.
    historical      true of an event that had happened before it entered the log, such as those that `backfill` loads:
                    policies pass over it. Of all others the field is not written, and reads as UNSET, which is false.

    Fields that a reader does not know are ignored.
    """

    event_id: MessageId
    type: str
    schema_version: Positive
    aggregate_id: str
    sequence: Positive
    occurred_at: Aware
    correlation_id: MessageId
    causation_id: MessageId | None = None
    historical: bool | UnsetType = UNSET
    data: E_co


class CommandEnvelope(Struct, Generic[C], frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A command and the aggregate it is for; `command_id` identifies repeats.

    `expected_sequence`: it is for the aggregate after so many events and no more. Left out where any will do: releases
    that do not know the field park what has it, because they would decide it at any sequence.
    """

    command_id: MessageId
    type: str
    schema_version: Positive
    aggregate_id: AggregateId
    issued_at: Aware
    correlation_id: MessageId
    causation_id: MessageId | None = None
    data: C
    expected_sequence: Expected = UNSET

    def __post_init__(self) -> None:
        check_aggregate_id(self.aggregate_id)


class Identity(Struct, frozen=True, gc=False):
    """What any envelope says of its message beside the data: for those who follow stories."""

    type: str
    correlation_id: str
    causation_id: str | None = None
    command_id: str = ""
    event_id: str = ""

    @property
    def id(self) -> str:
        return self.event_id or self.command_id


_read_identity = Decoder(Identity).decode


def identity_in(raw: bytes | None) -> Identity | None:
    """Of a record's value; None for what is neither a command nor an event."""
    try:
        found = _read_identity(raw or b"")
    except _UNREADABLE:
        return None
    return found if found.id else None


class _Dated(Struct, frozen=True, gc=False):
    occurred_at: Aware


_read_dated = Decoder(_Dated).decode


def occurred_in(raw: bytes | None) -> datetime | None:
    """When the event in a record's value occurred, of whatever type it is; None for what says no such time."""
    try:
        return _read_dated(raw or b"").occurred_at
    except _UNREADABLE:
        return None


class _Codec(Generic[Envelope, M]):
    """Raises ValueError for types that `check_types` refuses, or a version that cannot be upcast.

    upcasters: may be those of the whole service; those of other types are left out.
    """

    def __init__(self, envelope: Any, at: str, messages: Sequence[type[M]], upcasters: Upcasters) -> None:
        check_types(messages)
        types = {message.TYPE for message in messages}
        self._upcasters = {key: upcaster for key, upcaster in upcasters.items() if key[0] in types}
        check_upcasters(messages, self._upcasters)
        self._types = frozenset(messages)
        self._same_since = {each.TYPE: each.same_since() for each in messages}
        self._messages = {each.TYPE: (each.VERSION, TypeAdapter(each).validator.validate_json) for each in messages}
        self._at = at
        self._zone = attrgetter(f"{at}.tzinfo")
        self._read: Callable[[bytes], Envelope] = Decoder(envelope[Raw]).decode

    def decode(self, raw: bytes | None) -> Envelope:
        """The envelope in `raw`, with its data upcast to the current version. Raises BadMessage."""
        if raw is None:
            raise BadMessage("no value")
        try:
            envelope = self._read(raw)
        except _UNREADABLE as error:
            raise self._refusal(raw, error) from None
        if envelope.type not in self._messages:
            raise UnknownType(envelope.type)
        if self._zone(envelope) is not UTC:
            raise BadMessage(f"{self._at}: {_NOT_UTC}")
        current, validate = self._messages[envelope.type]
        version, data = envelope.schema_version, bytes(envelope.data)
        if version != current:
            data = self._upcast(envelope, current, data)
        try:
            force_setattr(envelope, "data", validate(data))  # nobody else has seen it yet
        except ValidationError as error:
            upcast_from = f"upcast from version {version}: " if version != current else ""
            raise _refused(error)(upcast_from + first_problem(error, "data")) from None
        return envelope

    def knows(self, type_: str, version: int) -> bool:
        """Whether it reads messages of this type in this version."""
        return type_ in self._messages and version <= self._messages[type_][0]

    def encode(self, envelope: Envelope) -> bytes:
        """Compact JSON with the fields in their declared order."""
        return encode(envelope)

    def _check_declared(self, message: M) -> None:
        if type(message) not in self._types:
            fix = "add it to the commands or the events of its Decider"
            raise TypeError(f"{type(message).__name__} is not declared; fix: {fix}")

    def _upcast(self, envelope: Envelope, current: int, data: bytes) -> bytes:
        """`data` in the current version, which is also set in the envelope."""
        version, same = envelope.schema_version, self._same_since[envelope.type]
        if version > current:
            raise Unknown(f"schema_version: {version}, and {current} is the newest known here")
        force_setattr(envelope, "schema_version", current)
        if version >= same:
            return data
        return to_json(upcast(envelope.type, version, same, _json_object(data, "data: "), self._upcasters))

    def _refusal(self, raw: bytes, error: Exception) -> BadMessage:
        """Why a body is no envelope. A body of an undeclared type is not checked further: it gives UnknownType."""
        name = _json_object(raw).get("type")
        if isinstance(name, str) and name not in self._messages:
            return UnknownType(name)
        reason, _, path = str(error).partition(" - at `$.")
        refused = Unknown if reason.startswith(_UNKNOWN_FIELD) else BadMessage
        return refused(f"{path.removesuffix('`')}: {reason}" if path else reason)


# The bases' arguments are strings because typing cannot find E in the type that msgspec makes of EventEnvelope[E].
class EventCodec(_Codec["EventEnvelope[E]", E], Generic[E]):
    """Reads and writes the events of `event_types`; older versions are read through `upcasters`."""

    def __init__(self, event_types: Sequence[type[E]], upcasters: Upcasters | None = None) -> None:
        super().__init__(EventEnvelope, "occurred_at", event_types, upcasters or {})

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
        """The bytes of `event` in its envelope. Raises TypeError for an event that is not declared."""
        self._check_declared(event)
        envelope = EventEnvelope(
            event_id=event_id,
            type=event.TYPE,
            schema_version=event.VERSION,
            aggregate_id=aggregate_id,
            sequence=sequence,
            occurred_at=occurred_at,
            correlation_id=correlation_id,
            causation_id=causation_id,
            data=event,
        )
        return encode(envelope)


class CommandCodec(_Codec["CommandEnvelope[C]", C], Generic[C]):
    """Reads and writes the commands of `command_types`; older versions are read through `upcasters`."""

    def __init__(self, command_types: Sequence[type[C]], upcasters: Upcasters | None = None) -> None:
        super().__init__(CommandEnvelope, "issued_at", command_types, upcasters or {})

    def wrap(
        self,
        command: C,
        *,
        command_id: str,
        aggregate_id: str,
        issued_at: datetime,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        expected_sequence: int | None = None,
    ) -> CommandEnvelope[C]:
        """As the function `wrap`. Also raises TypeError for a command that is not declared."""
        self._check_declared(command)
        return wrap(
            command,
            command_id=command_id,
            aggregate_id=aggregate_id,
            issued_at=issued_at,
            correlation_id=correlation_id,
            causation_id=causation_id,
            expected_sequence=expected_sequence,
        )


def wrap(
    command: C,
    *,
    command_id: str,
    aggregate_id: str,
    issued_at: datetime,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    expected_sequence: int | None = None,
) -> CommandEnvelope[C]:
    """`command` in its envelope; without `correlation_id` it starts a story of its own.

    Raises ValueError for an id or a time that readers would refuse.
    """
    if issued_at.utcoffset() != timedelta():
        raise ValueError(f"issued_at: {_NOT_UTC}")
    return CommandEnvelope(
        command_id=check_message_id(command_id),
        type=command.TYPE,
        schema_version=command.VERSION,
        aggregate_id=aggregate_id,
        issued_at=issued_at,
        correlation_id=check_message_id(correlation_id or command_id),
        causation_id=None if causation_id is None else check_message_id(causation_id),
        data=command,
        expected_sequence=UNSET if expected_sequence is None else expected_sequence,
    )


def _model(message: BaseModel) -> Raw:
    return Raw(to_json(message))


encode = Encoder(enc_hook=_model).encode
"""Compact JSON of an envelope, with the fields in their declared order."""


def _refused(error: ValidationError) -> type[BadMessage]:
    """What to raise: a later release may know a field that this one does not."""
    kinds = {problem["type"] for problem in error.errors(include_url=False, include_context=False, include_input=False)}
    return Unknown if "extra_forbidden" in kinds else BadMessage


def _json_object(raw: bytes, where: str = "") -> dict[str, Any]:
    try:
        fields = from_json(raw)
    except ValueError as error:
        raise BadMessage(f"{where}not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadMessage(f"{where}not a JSON object")
    return fields
