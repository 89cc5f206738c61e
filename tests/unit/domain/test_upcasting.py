"""A measured temperature through three versions: Fahrenheit, then Celsius, then with its unit in the name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.envelope import EventCodec
from shared.domain.errors import BadMessage
from shared.domain.message import Event
from shared.domain.upcasting import Upcasters


class Measured(Event):
    TYPE = "sensor.measured"
    VERSION = 3

    temperature_c: int


UPCASTERS: Upcasters = {
    ("sensor.measured", 1): lambda data: {"celsius": (data["fahrenheit"] - 32) * 5 // 9},
    ("sensor.measured", 2): lambda data: {"temperature_c": data["celsius"]},
}
CODEC: EventCodec[Measured] = EventCodec((Measured,), UPCASTERS)


def raw(version: object, data: object) -> bytes:
    envelope: dict[str, Any] = {
        "event_id": "e-1",
        "type": "sensor.measured",
        "schema_version": version,
        "aggregate_id": "s-1",
        "sequence": 1,
        "occurred_at": "1997-01-12T08:30:00Z",
        "correlation_id": "c-1",
        "causation_id": None,
        "data": data,
    }
    return json.dumps(envelope).encode()


@given(st.integers())
def test_every_version_is_read_as_the_current_one(celsius: int) -> None:
    current = CODEC.decode(raw(3, {"temperature_c": celsius}))
    assert CODEC.decode(raw(2, {"celsius": celsius})) == current
    assert CODEC.decode(raw(1, {"fahrenheit": celsius * 9 // 5 + 32})).data.temperature_c in (celsius - 1, celsius)
    assert current.schema_version == 3


@pytest.mark.parametrize(
    ("version", "data", "reason"),
    [
        (1, {"kelvin": 1}, "not version 1 of sensor.measured: KeyError"),
        (1, {"fahrenheit": "hot"}, "not version 1 of sensor.measured: TypeError"),
        (2, {"celsius": "20"}, "upcast from version 2: data.temperature_c: "),
        (1, [], "data: not a JSON object"),
        (4, {"temperature_c": 1}, "schema_version: 4, and 3 is the newest known here"),
    ],
)
def test_what_is_not_of_its_version_is_a_bad_message(version: int, data: object, reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        CODEC.decode(raw(version, data))


def test_a_version_without_a_way_on_is_refused_before_it_is_met() -> None:
    with pytest.raises(ValueError, match=r"no upcaster for \[\('sensor\.measured', 2\)\]: give it in upcasters="):
        EventCodec((Measured,), {("sensor.measured", 1): dict})


class Placed(Event):
    """What a reader declares that needs no temperature: versions 2 and 3 changed nothing else."""

    TYPE = Measured.TYPE
    VERSION = 3
    SAME_SINCE = 1

    room: str


class Moved(Placed):
    """Rooms had numbers in version 1."""

    SAME_SINCE = 2


def test_a_reader_that_does_not_use_what_was_changed_needs_no_upcaster() -> None:
    codec = EventCodec((Placed,))
    for version in (1, 2, 3):
        event = codec.decode(raw(version, {"room": "attic", "fahrenheit": 70}))
        assert (event.schema_version, event.data) == (3, Placed(room="attic"))
    with pytest.raises(BadMessage, match="schema_version: 4, and 3 is the newest"):
        codec.decode(raw(4, {"room": "attic"}))


def test_a_reader_upcasts_up_to_the_version_since_which_its_fields_are_the_same() -> None:
    codec = EventCodec((Moved,), {(Moved.TYPE, 1): lambda data: {"room": f"room {data['number']}"}})
    rooms = [
        codec.decode(raw(version, data)).data.room for version, data in ((1, {"number": 7}), (2, {"room": "hall"}))
    ]
    assert rooms == ["room 7", "hall"]
    with pytest.raises(ValueError, match=r"no upcaster for \[\('sensor\.measured', 1\)\]"):
        EventCodec((Moved,))


@pytest.mark.parametrize("since", [4, -1])
def test_fields_are_the_same_since_a_version_that_there_is(since: int) -> None:
    changed = type("Changed", (Placed,), {"SAME_SINCE": since, "__module__": __name__})
    with pytest.raises(ValueError, match=rf"^Changed: SAME_SINCE = {since} is none of its versions; fix: 1 to 3, its"):
        EventCodec((changed,))


def test_an_upcaster_that_leads_nowhere_is_refused() -> None:
    refusal = r"that no message declared here has had: \[\('sensor\.measured', 3\)\]: .*raise the VERSION"
    with pytest.raises(ValueError, match=refusal):
        EventCodec((Measured,), {**UPCASTERS, ("sensor.measured", 3): dict})


def test_a_reader_takes_the_upcasters_of_its_whole_service() -> None:
    codec: EventCodec[Measured] = EventCodec((Measured,), {**UPCASTERS, ("sensor.moved", 1): dict})
    assert codec.decode(raw(2, {"celsius": 20})) == CODEC.decode(raw(2, {"celsius": 20}))
