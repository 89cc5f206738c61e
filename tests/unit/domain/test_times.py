"""Days and instants come as ISO 8601 text, from JSON and from Python alike, and never as numbers."""

import json
from datetime import UTC, date, datetime
from typing import Annotated, Any

import pytest
from pydantic import PlainSerializer, TypeAdapter, ValidationError

from shared.domain.message import Command
from shared.domain.times import Day, Instant


class Wait(Command):
    TYPE = "test.wait"

    until: Instant
    but_not_on: Day


WAIT = Wait(until=datetime(1997, 1, 18, 9, 30, tzinfo=UTC), but_not_on=date(1997, 1, 19))
WRITTEN = {"until": "1997-01-18T09:30:00Z", "but_not_on": "1997-01-19"}


def test_text_is_read_from_json_and_from_python_alike() -> None:
    assert Wait.model_validate_json(json.dumps(WRITTEN)) == Wait.model_validate(WRITTEN) == WAIT


def test_it_is_written_as_it_was_read() -> None:
    assert json.loads(WAIT.model_dump_json()) == WRITTEN


def test_another_spelling_of_offset_zero_is_written_the_one_way() -> None:
    wait = Wait.model_validate(WRITTEN | {"until": "1997-01-18T09:30:00.000+00:00"})
    assert json.loads(wait.model_dump_json()) == WRITTEN


def test_a_serializer_of_one_field_is_that_fields_alone() -> None:
    assert TypeAdapter(Annotated[Day, PlainSerializer(str)]).dump_python(date(1997, 1, 19)) == "1997-01-19"
    assert TypeAdapter(Day).dump_python(date(1997, 1, 19)) == date(1997, 1, 19)


@pytest.mark.parametrize("kind", [Day, Instant])
@pytest.mark.parametrize("value", [5, 5.0, "5", "-5", "", "today", True, None, [], "1997-13-01"])
def test_a_number_is_not_guessed_at(kind: Any, value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(value)
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_json(json.dumps(value))


@pytest.mark.parametrize("value", ["1997-01-18T09:30:00+02:00", "1997-01-18T09:30:00", "1997-01-18"])
def test_an_instant_says_that_it_is_utc(value: str) -> None:
    with pytest.raises(ValidationError):
        Wait.model_validate(WRITTEN | {"until": value})


@pytest.mark.parametrize(
    ("field", "said"), [("until", "an instant, ISO 8601 in UTC"), ("but_not_on", "a day, ISO 8601")]
)
@pytest.mark.parametrize("value", [5, "5", "today", "1997-13-01", "1997-01-18T09:30:00+02:00"])
def test_a_refusal_is_one_error_that_names_the_field_and_the_form(field: str, said: str, value: object) -> None:
    with pytest.raises(ValidationError) as of_python:
        Wait.model_validate(WRITTEN | {field: value})
    with pytest.raises(ValidationError) as of_json:
        Wait.model_validate_json(json.dumps(WRITTEN | {field: value}))
    for refused in (of_python, of_json):
        (error,) = refused.value.errors()
        assert (error["loc"], error["type"]) == ((field,), "iso_8601")
        assert error["msg"].startswith(f"must be {said}, such as ")


def test_a_schema_shows_their_formats() -> None:
    fields = Wait.model_json_schema()["properties"]
    assert (fields["until"]["format"], fields["but_not_on"]["format"]) == ("date-time", "date")
