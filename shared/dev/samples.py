"""A record of a message as a producer would write it, made of its JSON schema: a first golden record, for review."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter

from shared.dev.compatibility import alternatives
from shared.domain.envelope import CommandEnvelope, EventEnvelope, encode
from shared.domain.ids import derived_id
from shared.domain.message import Command, Event, Message
from shared.domain.personal import IN_SCHEMA

_AT = datetime(1997, 1, 18, tzinfo=UTC)
_TEXTS = {
    "date": "1997-01-18",
    "date-time": "1997-01-18T09:30:00Z",
    "duration": "PT1H",
    "time": "09:30:00Z",
    "uuid": "0a1b2c3d-0000-5000-8000-000000000001",
}
_OTHERS = ("a", "A", "1", "29.33", "1997-01-18")
_NUMBERS = {"integer": 1, "number": 1.5}


def sample(message: type[Message]) -> str:
    """The record as text.

    Raises ValidationError for a message with rules that its schema does not tell, and re.error for a pattern that is
    none of Python's.
    """
    schema = message.model_json_schema()
    data = TypeAdapter(message).validate_json(json.dumps(_value(schema, schema.get("$defs", {}), message.TYPE)))
    place: dict[str, Any] = {
        "type": message.TYPE,
        "schema_version": message.VERSION,
        "aggregate_id": f"{message.TYPE.partition('.')[0]}-1",
        "correlation_id": derived_id("story", message.TYPE),
    }
    record: CommandEnvelope[Any] | EventEnvelope[Any]
    if isinstance(data, Command):
        record = CommandEnvelope(command_id=derived_id("command", message.TYPE), issued_at=_AT, data=data, **place)
    else:
        assert isinstance(data, Event)
        made: dict[str, Any] = {
            "event_id": derived_id("event", message.TYPE),
            "causation_id": derived_id("command", message.TYPE),
        }
        record = EventEnvelope(sequence=1, occurred_at=_AT, data=data, **place, **made)
    return json.dumps(json.loads(encode(record)), indent=2, ensure_ascii=False) + "\n"


def _value(schema: Mapping[str, Any], models: Mapping[str, Any], name: str) -> Any:
    """One that is not null if there is another. name: of the field, which a text repeats."""
    several = alternatives(schema, models).values()
    if any(IN_SCHEMA in each for each in several):
        return None  # what is personal is never in a record in plain text
    found: Mapping[str, Any] = next((each for each in several if each.get("type") != "null"), {"type": "null"})
    if "const" in found or "enum" in found:
        return found.get("const", found.get("enum", [None])[0])
    match found.get("type", "string"):
        case "object" if "properties" in found:
            return {field: _value(inner, models, field) for field, inner in found["properties"].items()}
        case "object":
            values = found.get("additionalProperties")
            return {name: _value(values if isinstance(values, Mapping) else {}, models, name)}
        case "array":
            parts = found.get("prefixItems") or [found.get("items", {})] * max(1, found.get("minItems", 1))
            return [_value(each, models, name) for each in parts]
        case "integer" | "number":
            return max(_NUMBERS[found["type"]], found.get("minimum", 1), found.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return _text(found, name)


def _text(schema: Mapping[str, Any], name: str) -> str:
    if schema.get("format") in _TEXTS:
        return _TEXTS[schema["format"]]
    text = name[: schema.get("maxLength")].ljust(schema.get("minLength", 0), "x")
    fitting = [each for each in (text, *_OTHERS) if re.search(schema.get("pattern", ""), each)]
    return next(iter(fitting), text)
