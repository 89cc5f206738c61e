"""Days and instants as fields of a message: ISO 8601 text in JSON and from HTTP, never a number to guess at."""

from datetime import date, datetime
from typing import Annotated

from pydantic import BeforeValidator, Field, GetPydanticSchema
from pydantic_core import core_schema


def _no_number(value: object) -> object:
    # pydantic reads 5, and in strict mode the text "5", as five seconds after 1970
    if isinstance(value, date) or (isinstance(value, str) and value[4:5] == "-"):
        return value
    raise ValueError("not ISO 8601")


# not strict: from HTTP, the text comes parsed to a str
Day = Annotated[date, Field(strict=False), BeforeValidator(_no_number)]
"""A calendar day, UTC: `1997-01-18`."""

Instant = Annotated[
    datetime,
    GetPydanticSchema(lambda _type, _next: core_schema.datetime_schema(strict=False, tz_constraint=0)),
    BeforeValidator(_no_number),
]
"""A moment at offset zero: `1997-01-18T09:30:00Z`."""
