"""Bytes become an envelope or a BadMessage, nothing else."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Annotated, Any, Generic, get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from pydantic import Field, ValidationError

from shared.domain.envelope import C, CommandCodec, EventCodec, EventEnvelope
from shared.domain.errors import REASON_MAX_CHARS, BadMessage, Unknown, UnknownType
from shared.domain.message import Command, Event, Part


class Noted(Event):
    TYPE = "note.noted"

    text: str
    count: int


class Erased(Event):
    TYPE = "note.erased"


class Weighed(Event):
    TYPE = "note.weighed"

    grams: float


class Note(Command):
    TYPE = "note.note"

    text: str


EVENTS: EventCodec[Noted | Erased] = EventCodec((Noted, Erased))
COMMANDS: CommandCodec[Note] = CommandCodec((Note,))

EVENT: dict[str, Any] = {
    "event_id": "e-1",
    "type": "note.noted",
    "schema_version": 1,
    "aggregate_id": "n-1",
    "sequence": 1,
    "occurred_at": "1997-01-12T08:30:00Z",
    "correlation_id": "c-1",
    "causation_id": "c-1",
    "data": {"text": "ä", "count": 1},
}
COMMAND: dict[str, Any] = {
    "command_id": "c-1",
    "type": "note.note",
    "schema_version": 1,
    "aggregate_id": "n-1",
    "issued_at": "1997-01-12T08:30:00Z",
    "correlation_id": "c-1",
    "causation_id": None,
    "data": {"text": "ä"},
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
utc_times = st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
ids = st.text(min_size=1, max_size=128)


def raw(fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def test_an_event_is_written_as_it_is_read() -> None:
    envelope = EVENTS.decode(raw(EVENT))
    assert envelope.data == Noted(text="ä", count=1)
    assert envelope.occurred_at == datetime(1997, 1, 12, 8, 30, tzinfo=UTC)
    assert EVENTS.encode(envelope) == raw(EVENT)


def test_a_historical_event_says_so_and_no_other_event_has_the_field() -> None:
    historical = dict([*EVENT.items()][:-1]) | {"historical": True, "data": EVENT["data"]}
    envelope = EVENTS.decode(raw(historical))
    assert envelope.historical is True
    assert EVENTS.encode(envelope) == raw(historical)
    live = EVENTS.decode(raw(EVENT))
    assert not live.historical
    assert EVENTS.encode(live) == raw(EVENT)


def test_a_command_is_written_as_it_is_read() -> None:
    envelope = COMMANDS.decode(raw(COMMAND))
    assert envelope.data == Note(text="ä")
    assert COMMANDS.encode(envelope) == raw(COMMAND)


def test_what_a_command_expects_is_written_only_if_it_expects_something() -> None:
    """An earlier release refuses the field, as it should, and must not meet it in any other command."""
    expecting = raw(COMMAND | {"expected_sequence": 0})
    envelope = COMMANDS.decode(expecting)
    assert (envelope.expected_sequence, COMMANDS.encode(envelope)) == (0, expecting)
    with pytest.raises(BadMessage, match="expected_sequence"):
        COMMANDS.decode(raw(COMMAND | {"expected_sequence": 10**18}))


class EarlierEnvelope(Struct, Generic[C], kw_only=True, forbid_unknown_fields=True):
    """A command's envelope before it had `expected_sequence`."""

    command_id: str
    type: str
    schema_version: int
    aggregate_id: str
    issued_at: datetime
    correlation_id: str
    causation_id: str | None = None
    data: C


def test_an_earlier_release_keeps_the_place_of_a_command_that_expects_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would decide it at any sequence; what is unknown to it is parked, and so is what follows of its key."""
    monkeypatch.setattr("shared.domain.envelope.CommandEnvelope", EarlierEnvelope)
    earlier: CommandCodec[Note] = CommandCodec((Note,))
    assert earlier.decode(raw(COMMAND)).data == Note(text="ä")
    with pytest.raises(Unknown, match="unknown field `expected_sequence`"):
        earlier.decode(raw(COMMAND | {"expected_sequence": 1}))


def test_a_new_command_starts_its_own_story() -> None:
    issued_at = datetime(1997, 1, 12, 8, 30, tzinfo=UTC)
    envelope = COMMANDS.wrap(Note(text="ä"), command_id="c-1", aggregate_id="n-1", issued_at=issued_at)
    assert COMMANDS.encode(envelope) == raw(COMMAND)


@given(ids, st.text(), st.integers(1, 2**63 - 1), utc_times, ids, ids | st.none(), st.text(), st.integers())
def test_an_event_is_read_as_it_was_written(
    event_id: str,
    aggregate_id: str,
    sequence: int,
    occurred_at: datetime,
    correlation_id: str,
    causation_id: str | None,
    text: str,
    count: int,
) -> None:
    event = Noted(text=text, count=count)
    fields: dict[str, Any] = {
        "event_id": event_id,
        "aggregate_id": aggregate_id,
        "sequence": sequence,
        "occurred_at": occurred_at,
        "correlation_id": correlation_id,
        "causation_id": causation_id,
    }
    written = EVENTS.write(event, **fields)
    envelope = EVENTS.decode(written)
    assert {name: getattr(envelope, name) for name in fields} == fields
    assert (envelope.type, envelope.schema_version, envelope.data) == (Noted.TYPE, Noted.VERSION, event)
    assert EVENTS.encode(envelope) == written


def test_an_event_that_is_not_declared_is_not_written() -> None:
    class Other(Noted):
        pass

    for event in (Weighed(grams=1.0), Other(text="", count=1), Note(text="")):
        with pytest.raises(TypeError, match="is not declared; fix: add it to"):
            EVENTS.write(
                event,  # type: ignore[arg-type]
                event_id="e-1",
                aggregate_id="n-1",
                sequence=1,
                occurred_at=datetime(1997, 1, 12, 8, 30, tzinfo=UTC),
                correlation_id="c-1",
            )


def test_an_event_ignores_a_field_it_does_not_know() -> None:
    newer = EVENT | {"tenant": "t-1", "data": {**EVENT["data"], "colour": "red"}}
    assert EVENTS.decode(raw(newer)) == EVENTS.decode(raw(EVENT))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tenant": "t-1"}, "Object contains unknown field `tenant`"),
        ({"data": {"text": "ä", "colour": "red"}}, "data.colour: Extra inputs are not permitted"),
        ({"data": {}}, "data.text: Field required"),
        ({"data": {"text": 1}}, "data.text: Input should be a valid string"),
        ({"data": []}, "data: "),
        ({"command_id": ""}, "command_id: Expected `str` of length >= 1"),
        ({"command_id": "c" * 129}, "command_id: Expected `str` of length <= 128"),
        ({"aggregate_id": "a\nb"}, "an aggregate id cannot contain control characters"),
        ({"aggregate_id": "é" * 65}, "an aggregate id has at most 128 bytes"),
        ({"issued_at": "1997-01-12T08:30:00"}, "issued_at: "),
        ({"issued_at": "1997-01-12T08:30:00+02:00"}, "issued_at: "),
        ({"issued_at": 853057800}, "issued_at: "),
        ({"issued_at": "853057800"}, "issued_at: "),
        ({"schema_version": 2}, "schema_version: "),
        ({"schema_version": 0}, "schema_version: "),
        ({"schema_version": "1"}, "schema_version: "),
        ({"schema_version": True}, "schema_version: "),
        ({"type": None}, "type: Expected `str`"),
        ({"expected_sequence": -1}, "expected_sequence: Expected `int` >= 0"),
        ({"expected_sequence": None}, "expected_sequence: Expected `int`"),
    ],
)
def test_a_bad_command_says_what_is_wrong(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(BadMessage, match=f"^{reason}"):
        COMMANDS.decode(raw(COMMAND | changes))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no value"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'"\xff"', "not JSON"),
        (b'{"type": "note.note\xff"}', "not JSON"),
        (b'{"type\xff": "note.note"}', "not JSON"),
        (b'{"data":' + b"[" * 100_000, "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"1", "not a JSON object"),
        (b"{}", "Object missing required field"),
    ],
)
def test_a_value_that_is_no_envelope_says_so(value: bytes | None, reason: str) -> None:
    for codec in (EVENTS, COMMANDS):
        with pytest.raises(BadMessage, match=reason):
            codec.decode(value)


@pytest.mark.parametrize("grams", [float("nan"), float("inf")])
def test_a_number_that_other_readers_of_json_refuse_is_a_bad_message(grams: float) -> None:
    codec: EventCodec[Weighed] = EventCodec((Weighed,))
    with pytest.raises(BadMessage, match="JSON is malformed"):
        codec.decode(raw(EVENT | {"type": "note.weighed", "data": {"grams": grams}}))


def test_an_unknown_type_can_be_told_from_a_broken_message() -> None:
    with pytest.raises(UnknownType) as unknown:
        EVENTS.decode(raw(EVENT | {"type": "note.burnt"}))
    assert unknown.value.message_type == "note.burnt"


def test_a_reason_stays_short_and_does_not_quote_the_data() -> None:
    with pytest.raises(BadMessage) as long:
        COMMANDS.decode(raw(COMMAND | {"x" * 10_000: 1}))
    assert len(long.value.reason) == REASON_MAX_CHARS
    with pytest.raises(BadMessage) as personal:
        COMMANDS.decode(raw(COMMAND | {"data": {"text": ["Ada Lovelace"]}}))
    assert "Ada" not in personal.value.reason


@given(st.binary())
def test_random_bytes_are_a_bad_message(value: bytes) -> None:
    for codec in (EVENTS, COMMANDS):
        with pytest.raises(BadMessage):
            codec.decode(value)


@given(json_values)
def test_random_json_is_a_bad_message(value: object) -> None:
    for codec in (EVENTS, COMMANDS):
        with pytest.raises(BadMessage):
            codec.decode(json.dumps(value).encode())


@given(st.sampled_from(sorted(EVENT)), json_values)
def test_an_event_with_one_random_field_is_read_or_bad(field: str, value: object) -> None:
    try:
        envelope = EVENTS.decode(json.dumps(EVENT | {field: value}).encode())
    except BadMessage:
        return
    assert EVENTS.decode(EVENTS.encode(envelope)) == envelope


@given(st.sampled_from(sorted(COMMAND)), json_values)
def test_a_command_with_one_random_field_is_read_or_bad(field: str, value: object) -> None:
    try:
        envelope = COMMANDS.decode(json.dumps(COMMAND | {field: value}).encode())
    except BadMessage:
        return
    assert COMMANDS.decode(COMMANDS.encode(envelope)) == envelope


@given(st.integers(min_value=0, max_value=len(raw(EVENT)) - 1))
def test_a_cut_event_is_a_bad_message(length: int) -> None:
    with pytest.raises(BadMessage):
        EVENTS.decode(raw(EVENT)[:length])


@given(st.integers(min_value=0, max_value=len(raw(EVENT)) - 1), st.integers(min_value=0, max_value=255))
def test_an_event_with_one_other_byte_is_read_or_bad(place: int, byte: int) -> None:
    other = bytearray(raw(EVENT))
    other[place] = byte
    with suppress(BadMessage):
        EVENTS.decode(bytes(other))


def test_an_envelope_cannot_be_changed() -> None:
    envelope: EventEnvelope[Noted | Erased] = EVENTS.decode(raw(EVENT))
    with pytest.raises(AttributeError):
        envelope.sequence = 2  # type: ignore[misc]


def test_a_time_that_is_not_utc_is_not_written() -> None:
    elsewhere = datetime(1997, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    for moment in (elsewhere, elsewhere.replace(tzinfo=None)):
        with pytest.raises(ValueError, match="issued_at"):
            COMMANDS.wrap(Note(text=""), command_id="c-1", aggregate_id="n-1", issued_at=moment)


@pytest.mark.parametrize(
    ("field", "illegal"),
    [
        ("command_id", ""),
        ("causation_id", ""),
        ("command_id", "x" * 129),
        ("correlation_id", "x" * 129),
        ("causation_id", "x" * 129),
    ],
)
def test_an_id_that_no_reader_takes_is_not_written(field: str, illegal: str) -> None:
    ids: dict[str, Any] = {"command_id": "c-1", "aggregate_id": "n-1"}
    issued_at = datetime(1997, 1, 12, tzinfo=UTC)
    longest = COMMANDS.wrap(Note(text=""), **(ids | {field: "x" * 128}), issued_at=issued_at)
    assert COMMANDS.decode(COMMANDS.encode(longest)) == longest
    with pytest.raises(ValueError, match=f"1 to 128 characters, this one {len(illegal)}"):
        COMMANDS.wrap(Note(text=""), **(ids | {field: illegal}), issued_at=issued_at)


def test_two_types_of_one_name_are_refused() -> None:
    class Other(Event):
        TYPE = "note.noted"

    with pytest.raises(ValueError, match="share a TYPE"):
        EventCodec((Noted, Other))


@pytest.mark.parametrize("codec", [EventCodec, CommandCodec])
def test_no_types_are_refused(codec: Any) -> None:
    with pytest.raises(ValueError, match=r"no message types.*write \(TheClass,\)"):
        codec(get_args(Noted))


def test_a_body_over_http_needs_a_field_that_is_not_strict() -> None:
    class Tag(Command):
        TYPE = "note.tag"

        strict: tuple[UUID, ...] = ()
        lax: Annotated[tuple[Annotated[UUID, Field(strict=False)], ...], Field(strict=False)] = ()

    tags = ["12345678-1234-5678-1234-567812345678"]
    assert Tag.model_validate({"lax": tags}).lax == Tag.model_validate_json(json.dumps({"strict": tags})).strict
    with pytest.raises(ValidationError, match="valid tuple"):
        Tag.model_validate({"strict": tags})


@pytest.mark.parametrize(("grams", "said"), [(float("nan"), "finite"), ("5", "valid number")])
def test_a_model_inside_a_message_is_as_strict_as_the_message(grams: object, said: str) -> None:
    class Parcel(Part):
        grams: float

    class Send(Command):
        TYPE = "parcel.send"

        parcel: Parcel

    with pytest.raises(ValidationError, match=said):
        Send.model_validate({"parcel": {"grams": grams}})
