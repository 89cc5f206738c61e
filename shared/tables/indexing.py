"""Secondary indexes of a table: keys in the store that sort as the values of a field do.

An entry is `\\x01 field \\x00 value \\x00 key`, or `\\x01 field \\x01 field \\x00 value \\x00 value \\x00 key`;
aggregate ids have no control characters, so no row has such a key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import from_json, to_json, to_jsonable_python

from shared.domain.personal import IN_SCHEMA
from shared.domain.row import json_reader

Value = None | bool | int | float | str

_JOINT = "\x01"
_NUMBER_BYTES = 8
_INT_END = 2**63
_SIGN = 2**63
_ALL_BITS = 2**64 - 1

_PROSE = frozenset({"title", "description", "examples"})
_KINDS = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


NOT_NULL = b"1"
"""Not greater than any sortable value but null's."""


def fields_of(index: str | tuple[str, ...]) -> tuple[str, ...]:
    """The fields of an index as a table declares it, in the order in which it sorts by them."""
    return (index,) if isinstance(index, str) else index


def name_of(fields: Sequence[str]) -> str:
    """What an index is called in a store."""
    return _JOINT.join(fields)


def shown_name(name: str) -> str:
    return name.replace(_JOINT, ",")


def prefix(index: str) -> bytes:
    """The prefix of all entries of an index, by its name."""
    return b"\x01" + index.encode() + b"\x00"


def sortable(value: Value) -> bytes:
    """Bytes that compare as the values do: null, booleans, integers (clamped to 64 bits), strings, then floats.

    Raises TypeError for values without such an order, such as lists.
    """
    if value is None:
        return b"0"
    if isinstance(value, bool):
        return b"1\x01" if value else b"1\x00"
    if isinstance(value, int):
        return b"2" + (max(-_INT_END, min(value, _INT_END - 1)) + _INT_END).to_bytes(_NUMBER_BYTES, "big")
    if isinstance(value, str):
        return b"3" + value.encode().replace(b"\x00", b"\x01")
    if isinstance(value, float):
        bits = int.from_bytes(struct.pack(">d", value + 0.0), "big")  # + 0.0 turns -0.0 into 0.0
        return b"4" + (bits ^ (_ALL_BITS if bits & _SIGN else _SIGN)).to_bytes(_NUMBER_BYTES, "big")
    raise TypeError(f"an index holds null, booleans, numbers or text, not a {type(value).__name__}")


def indexed(state: Any, field: str) -> Value:
    """The value by which a state, as from JSON, is found.

    Null for a field that the state lacks, and for a list or an object: a committed row always has entries.
    """
    value = state.get(field) if isinstance(state, dict) else None
    return None if isinstance(value, (list, dict)) else value


def entry(field: str, value: Value, key: bytes) -> bytes:
    return prefix(field) + sortable(value) + b"\x00" + key


def key_of(entry: bytes) -> bytes:
    """The row's key, from an entry of any index."""
    return entry[entry.rindex(b"\x00") + 1 :]


class Indexes:
    """What gives rows their entries: the values of fields as a read finds them, of which an older row may lack some.

    declared: of what the entries are made, besides the rows; it differs where a release would make others.
    """

    def __init__(self, indexes: Sequence[str | tuple[str, ...]], state_type: Any = Any) -> None:
        """indexes: as a table declares them."""
        self._indexes = {name_of(fields): fields for fields in map(fields_of, indexes)}
        self._read = json_reader({"state": state_type if indexes else Any})  # not every state is pydantic's
        whole = _schema(state_type) if indexes else {}
        shapes = {name: [_shapes(whole, field) for field in fields] for name, fields in self._indexes.items()}
        declared = {name: _without_prose(some if len(some) > 1 else some[0]) for name, some in shapes.items()}
        self.declared = to_json(declared) if indexes else b""

    def entries(self, key: bytes, row: bytes | None) -> Iterator[bytes]:
        """The entries of an encoded row; none for a deleted one."""
        if row is None or not self._indexes:
            return
        state = self._state(row)
        for name, fields in self._indexes.items():
            yield prefix(name) + b"\x00".join([*(sortable(indexed(state, field)) for field in fields), key])

    def _state(self, row: bytes) -> Any:
        try:
            return to_jsonable_python(self._read(row)["state"])
        except ValidationError:  # a standby may hold rows of a later release, which lack nothing
            with suppress(LookupError, TypeError, ValueError):
                return from_json(row)["state"]
            return None  # it is committed, so the store has to take it: whoever reads it is told


class _Shape(GenerateJsonSchema):
    """Takes for anything what no schema can describe, and what a serializer without a return type makes."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def ser_schema(self, schema: Any) -> JsonSchemaValue | None:
        if schema["type"] in ("function-plain", "function-wrap") and "return_schema" not in schema:
            return {}
        return super().ser_schema(schema)

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        return _unsorted(super().decimal_schema(schema), "decimal")

    def timedelta_schema(self, schema: Any) -> JsonSchemaValue:
        return _unsorted(super().timedelta_schema(schema), "duration")

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}


def _unsorted(schema: JsonSchemaValue, kind: str) -> JsonSchemaValue:
    return {"type": kind} if schema.get("type") == "string" else schema


def kinds(type_: Any, field: str, *, by_alias: bool = True) -> set[str]:
    """The JSON types that `field` has in values of `type_`, a type or a union of phases; empty if none has it.

    A personal text is `encrypted`. A Decimal is a `decimal`, a timedelta a `duration`: their text sorts otherwise.
    """
    whole = _schema(type_, by_alias)
    definitions = whole.get("$defs", {})
    return {kind for found in _shapes(whole, field) for case in _cases(found, definitions) for kind in _kinds(case)}


def formats(type_: Any, field: str) -> set[str | None]:
    """The formats of the texts that `field` can be, as far as they have one: `date-time` of an instant."""
    whole = _schema(type_)
    definitions = whole.get("$defs", {})
    cases = (case for found in _shapes(whole, field) for case in _cases(found, definitions))
    return {case.get("format") for case in cases if case.get("type") != "null"}


def _schema(type_: Any, by_alias: bool = True) -> JsonSchemaValue:
    return TypeAdapter(type_).json_schema(by_alias=by_alias, schema_generator=_Shape, mode="serialization")


def _shapes(whole: JsonSchemaValue, field: str) -> list[JsonSchemaValue]:
    """The schemas of `field` in the phases that have it."""
    return [found for phase in _cases(whole, whole.get("$defs", {})) for found in _fields(phase, field)]


def _cases(schema: JsonSchemaValue, definitions: JsonSchemaValue) -> Iterator[JsonSchemaValue]:
    """The schemas that a union consists of, or the one that it is."""
    if "$ref" in schema:
        yield from _cases(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    elif cases := schema.get("anyOf", schema.get("oneOf")):
        for case in cases:
            yield from _cases(case, definitions)
    else:
        yield schema


def _without_prose(schema: Any) -> Any:
    """The schema without what says nothing of the values."""
    match schema:
        case dict():
            return {name: _without_prose(part) for name, part in schema.items() if name not in _PROSE}
        case list():
            return [_without_prose(part) for part in schema]
        case _:
            return schema


def _fields(phase: JsonSchemaValue, field: str) -> Iterator[JsonSchemaValue]:
    """The schema of `field`, if it can be there."""
    others = phase.get("additionalProperties", "properties" not in phase and "object" in _kinds(phase))
    found = phase.get("properties", {}).get(field, others)
    if found is not False:
        yield {} if found is True else found


def _kinds(schema: JsonSchemaValue) -> frozenset[str]:
    if IN_SCHEMA in schema:
        return frozenset({"encrypted"})
    named = schema.get("type", _KINDS)
    return frozenset({named} if isinstance(named, str) else named)
