"""The messages and states of a service for others: as JSON schemas, and as Avro and Protobuf made of these.

All three say what the JSON on the wire has: a day or an instant is text in each of them. A message is named after its
TYPE, `AccountOpened`, and a state after its table and phase, `AccountsOpen`; a number follows where that is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain, count
from typing import Any, Literal
from zlib import crc32

from shared.dev.compatibility import KINDS, STATES, alternatives, resolved

Json = Mapping[str, Any]
Format = Literal["json", "avro", "proto"]

_WORD = re.compile(r"[A-Za-z0-9]+")
_NULL = "null"


def shown_as(format_: Format, service: str, document: Json) -> str:
    """One text with all of the service's messages and states."""
    match format_:
        case "json":
            return json.dumps(document, indent=2, ensure_ascii=False)
        case "avro":
            return json.dumps(avro(service, document), indent=2, ensure_ascii=False)
        case "proto":
            return proto(service, document)


def _records(document: Json) -> Iterator[tuple[str, Json, Json]]:
    """The name, the schema and the models of each message, and of each phase of a state."""
    named: set[str] = set()
    for kind in KINDS:
        for name, entry in document.get(kind, {}).items():
            models = entry["schema"].get("$defs", {})
            for told, schema in alternatives(entry["schema"], models).items():
                if told != _NULL:
                    phase = told.partition(" ")[2] if kind == STATES else ""
                    yield _unique(_class_name(f"{name} {phase}"), named), schema, models


def _class_name(text: str) -> str:
    return "".join(word[0].upper() + word[1:] for word in _WORD.findall(text.replace("_", " ")))


def _unique(name: str, named: set[str]) -> str:
    """The name, with a number if it is among those that are taken; now it is."""
    names = chain([name], (f"{name}{number}" for number in count(2)))
    found = next(each for each in names if each not in named)
    named.add(found)
    return found


def avro(service: str, document: Json) -> list[Json]:
    """A union of records."""
    records = [*_records(document)]
    named = {name for name, *_ in records}
    return [_Avro(service, name, named).record(name, *rest) for name, *rest in records]


class _Avro:
    """outer: the record of which the models inside are named, too. named: the names that are taken."""

    def __init__(self, service: str, outer: str, named: set[str]) -> None:
        self._namespace = "".join(_WORD.findall(service))
        self._outer = outer
        self._named = named
        self._declared: dict[str, str] = {}

    def record(self, name: str, schema: Json, models: Json) -> Json:
        """schema: of an object with fields."""
        return {
            "type": "record",
            "name": name,
            "namespace": self._namespace,
            **({"doc": schema["description"]} if "description" in schema else {}),
            "fields": [self._field(field, each, models) for field, each in schema["properties"].items()],
        }

    def _field(self, name: str, schema: Json, models: Json) -> Json:
        types = self._types(schema, models)
        default = {"default": schema["default"]} if "default" in schema else {}
        if default and not _is_of(types[0], schema["default"]):  # a default is of the first type of a union
            types.sort(key=lambda each: not _is_of(each, schema["default"]))
        return {"name": name, "type": types[0] if len(types) == 1 else types, **default}

    def _types(self, schema: Json, models: Json) -> list[Any]:
        """Those of the union, or the one."""
        found: list[Any] = []
        for each in _parts(schema, models):
            found += [type_ for type_ in self._type(each, models) if type_ not in found]
        return found

    def _type(self, schema: Json, models: Json) -> list[Any]:
        """One, or all that a value of any type may have."""
        named = schema.get("$ref", "").rpartition("/")[2]
        schema = resolved(schema, models)
        match schema.get("type"):
            case "object" if "properties" in schema:
                if named in self._declared:
                    return [self._declared[named]]
                name = self._declared[named] = _unique(_class_name(f"{self._outer} {named}"), self._named)
                return [self.record(name, schema, models)]
            case "object":
                return [{"type": "map", "values": self._of(schema.get("additionalProperties"), models)}]
            case "array":
                inner = {"anyOf": schema["prefixItems"]} if "prefixItems" in schema else schema.get("items")
                return [{"type": "array", "items": self._of(inner, models)}]
            case None:
                return [*_AVRO.values()]
            case kind:
                return [_AVRO[kind]]

    def _of(self, schema: Any, models: Json) -> Any:
        types = self._types(schema if isinstance(schema, Mapping) else {}, models)
        return types[0] if len(types) == 1 else types


_AVRO = {"null": "null", "boolean": "boolean", "integer": "long", "number": "double", "string": "string"}
_PYTHON = {"null": type(None), "boolean": bool, "long": int, "double": float, "string": str}


def _is_of(type_: Any, value: Any) -> bool:
    """Whether an Avro type has this value."""
    if isinstance(type_, str):
        return type(value) is _PYTHON.get(type_, dict)  # else the name of a record
    return isinstance(value, list if type_["type"] == "array" else dict)


def _parts(schema: Json, models: Json) -> Iterator[Json]:
    """The alternatives, still as references where they are."""
    inner = resolved(schema, models) if "anyOf" not in schema and "oneOf" not in schema else schema
    if several := inner.get("anyOf", inner.get("oneOf")):
        for each in several:
            yield from _parts(each, models)
    else:
        yield schema


_HEAD = """\
syntax = "proto3";

// The `data` of each message, and the state in each row, as JSON has them.
// The number of a field is made of its name, so that it stays as it is, whatever comes and goes.
package {package};

import "google/protobuf/struct.proto";
"""
_ANY = "google.protobuf.Value"
_PROTO = {"integer": "int64", "number": "double", "boolean": "bool", "string": "string"}
_FIRST_NUMBER, _LAST_NUMBER = 20_000, 2**29 - 1  # below are some that Protobuf keeps for itself


def proto(service: str, document: Json) -> str:
    """A file of messages; what is a list of lists, or has several types, is a google.protobuf.Value."""
    messages = [_proto_message(*each, "") for each in _records(document)]
    return "\n".join([_HEAD.format(package="".join(_WORD.findall(service))), *messages])


def _proto_message(name: str, schema: Json, models: Json, indent: str, inside: tuple[str, ...] = ()) -> str:
    """With the models in it, each once. inside: the references that led here."""
    inner = indent + "  "
    lines, parts = list[str](), dict[str, str]()
    for field, each in schema["properties"].items():
        type_, used = _proto_type(each, models, inside)
        parts |= {ref: _proto_message(_class_name(ref), models[ref], models, inner, (*inside, ref)) for ref in used}
        lines.append(f'{inner}{type_} {field} = {_number(field)} [json_name = "{field}"];\n')
    prose = "".join(f"{indent}// {line}\n" for line in schema.get("description", "").splitlines() if line)
    return f"{prose}{indent}message {name} {{\n{''.join(parts.values())}{''.join(lines)}{indent}}}\n"


def _proto_type(schema: Json, models: Json, inside: tuple[str, ...]) -> tuple[str, list[str]]:
    """The label and the type of a field, and the models to declare for it."""
    several = [each for each in _parts(schema, models) if resolved(each, models).get("type") != _NULL]
    nullable = len(several) < len(list(_parts(schema, models)))
    if len(several) != 1:
        return _ANY, []
    found = resolved(several[0], models)
    match found.get("type"):
        case "array" if isinstance(found.get("items"), Mapping):
            type_, used = _proto_type(found["items"], models, inside)
            return (f"repeated {type_}" if " " not in type_ and "<" not in type_ else _ANY), used
        case "object" if "properties" not in found and isinstance(found.get("additionalProperties"), Mapping):
            type_, used = _proto_type(found["additionalProperties"], models, inside)
            return (f"map<string, {type_}>" if " " not in type_ and "<" not in type_ else _ANY), used
        case "object" if "properties" in found:
            ref = several[0]["$ref"].rpartition("/")[2]
            return _class_name(ref), [] if ref in inside else [ref]
        case kind:
            type_ = _PROTO.get(str(kind), _ANY)
            return f"optional {type_}" if nullable and type_ != _ANY else type_, []


def _number(field: str) -> int:
    return _FIRST_NUMBER + crc32(field.encode()) % (_LAST_NUMBER - _FIRST_NUMBER)
