"""Days and instants as fields of a message: ISO 8601 text in JSON and from HTTP, never a number to guess at."""

from datetime import date, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Protocol

from pydantic import GetPydanticSchema, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

CLOCKS_DIFFER = timedelta(minutes=5)
"""By which what happened may be dated ahead of our clock."""


class _Reader(Protocol):
    def __call__(self, *, strict: bool) -> CoreSchema: ...


def _iso_8601(reader: _Reader, what: str) -> GetPydanticSchema:
    """From JSON only text; from Python also the value itself. Anything else is one error: "must be" `what`."""

    def schema(_type: Any, _next: Any) -> CoreSchema:
        """A new one for each field, because pydantic writes a field's own serializer into it."""
        # the pattern is needed because pydantic reads 5, and in strict mode the text "5", as five seconds after 1970
        iso = core_schema.str_schema(pattern="^[0-9]{4}-", strict=True)
        text = core_schema.chain_schema([iso, reader(strict=False)])
        either = core_schema.union_schema([reader(strict=True), text])
        read = core_schema.json_or_python_schema(json_schema=text, python_schema=either)
        return core_schema.custom_error_schema(read, "iso_8601", custom_error_message=f"must be {what}")

    return GetPydanticSchema(schema)


Day = Annotated[
    date,
    _iso_8601(core_schema.date_schema, "a day, ISO 8601, such as 1997-01-18"),
    WithJsonSchema({"type": "string", "format": "date"}),
]
"""A calendar day in UTC, as a `date`. On the wire it is text, ISO 8601: `1997-01-18`."""

Instant = Annotated[
    datetime,
    _iso_8601(
        partial(core_schema.datetime_schema, tz_constraint=0),
        "an instant, ISO 8601 in UTC, such as 1997-01-18T09:30:00Z",
    ),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": r"(Z|\+00:00)$"}),
]
"""A moment in UTC, as a `datetime` that knows its zone. On the wire it is text, ISO 8601: `1997-01-18T09:30:00Z`.

Any other offset than zero is refused, so that texts sort as times do, except within a second.
"""
