"""What `dev.py schemas` refuses because its values would not come back from their JSON as they were."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

Schema = Mapping[str, Any]

# the parts of a type that its JSON is written or read by; python_schema is not
_PARTS = (
    "schema",
    "items_schema",
    "keys_schema",
    "values_schema",
    "extras_schema",
    "json_schema",
    "strict_schema",
    "lax_schema",
    "choices",
)

_CLOCK_TICKS = 100  # calls until a clock surely shows another microsecond


def check_roundtrip(type_: Any, *, whole: bool = False) -> None:
    """Raises ValueError for a field, at any depth, whose JSON is lossy or cannot be read, or whose default varies.

    whole: whether every field in the JSON must be known to its reader, as in a row.

    A field with a serializer of its own, and the names in a model with a validator before its own, are not judged.
    """
    try:
        schema = TypeAdapter(type_).core_schema
        _Check(whole).walk(schema, _Place(getattr(type_, "__name__", str(type_)), {}, judged=True))
    except (PydanticUserError, PydanticUndefinedAnnotation):
        return  # not complete yet: whoever reads or writes it hears from pydantic


class _Place(NamedTuple):
    """path: names it in a refusal. config: of the class around it. judged: whether its validator is pydantic's own."""

    path: str
    config: Schema
    judged: bool


class _Check:
    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._definitions: dict[str, Schema] = {}
        self._seen: set[tuple[str, bool]] = set()

    def walk(self, schema: Schema, place: _Place) -> None:
        writer = schema.get("serialization", {}).get("function")
        if _masks(writer):
            raise _refusal(place.path, "its JSON is masked, so '**********' is read", "use str, and Field(repr=False)")
        if writer is not None and not _is_internal(writer):
            return
        match schema["type"]:
            case "set" | "frozenset":
                raise _refusal(place.path, "a set has no order, so its JSON differs by process", "use a sorted tuple")
            case "default" if _varies(schema):
                what = "its default differs each time, so a record that lacks it is read otherwise each time"
                raise _refusal(place.path, what, "use a constant, such as None")
            case "json" if place.judged:
                raise _refusal(place.path, "Json is read from text, but not written as text", "use the type inside it")
            case "model" | "dataclass" | "typed-dict" | "named-tuple":
                place = _Place(schema["cls"].__name__, schema.get("config", {}), place.judged)
            case "function-before" | "function-wrap" if _is_internal(schema["function"]["function"]):
                pass  # of a collection, such as a defaultdict
            case "function-before" | "function-wrap" | "chain":
                place = place._replace(judged=False)
            case "definitions":
                self._definitions |= {each["ref"]: each for each in schema["definitions"]}
            case "definition-ref":
                self._follow(schema["schema_ref"], place)
        if schema["type"] in ("model-fields", "typed-dict", "dataclass-args", "named-tuple"):
            self._check_fields(schema, place)
        for part in _parts(schema):
            # `Json[X] | X` reads an X
            self.walk(part, place._replace(judged=place.judged and (schema["type"], part["type"]) != ("union", "json")))

    def _follow(self, ref: str, place: _Place) -> None:
        if (ref, place.judged) not in self._seen:
            self._seen.add((ref, place.judged))
            self.walk(self._definitions[ref], place)

    def _check_fields(self, schema: Schema, place: _Place) -> None:
        if place.judged:
            self._check_extra(schema, place)
        for name, field in _fields(schema):
            path = f"{place.path}.{name}"
            if place.judged:
                _check_name(path, name, field, place.config)
            self.walk(field["schema"], _Place(path, {}, judged=True))

    def _check_extra(self, schema: Schema, place: _Place) -> None:
        extra = schema.get("extra_behavior", place.config.get("extra_fields_behavior"))
        if self._whole and extra == "allow":
            raise _refusal(place.path, "extra='allow' writes fields that no row may have", "declare a dict for them")
        if computed := schema.get("computed_fields") if self._whole or extra == "forbid" else None:
            path = f"{place.path}.{computed[0]['property_name']}"
            raise _refusal(path, "a computed field is written, but refused when read", "make it a plain property")


def _check_name(path: str, name: str, field: Schema, config: Schema) -> None:
    if field.get("serialization_exclude"):
        raise _refusal(path, "exclude=True leaves it out of the JSON, so it is lost", "remove exclude")
    if field.get("init") is False:
        raise _refusal(path, "it is written, but refused when read", "remove init=False")
    if field.get("init_only") and field["schema"]["type"] != "default":
        raise _refusal(path, "it is not written, but needed when read", "give the InitVar a default")
    written, read = field.get("serialization_alias", name), _names_read(name, field, config)
    if written not in read:
        what = f"it is written as {written!r}, but read as {' or '.join(map(repr, read)) or 'a part of another'}"
        raise _refusal(path, what, f"use a plain alias, or add {written!r} to the validation_alias")


def _names_read(name: str, field: Schema, config: Schema) -> list[str]:
    """The names that a field is read by."""
    alias = field.get("validation_alias")
    if alias is None:
        return [name]
    paths = [[alias]] if isinstance(alias, str) else alias if isinstance(alias[0], list) else [alias]
    by_alias = [path[0] for path in paths if len(path) == 1] if config.get("validate_by_alias", True) else []
    return [*by_alias, name] if config.get("validate_by_name") else by_alias


def _fields(schema: Schema) -> Iterator[tuple[str, Schema]]:
    fields = schema["fields"]
    yield from fields.items() if isinstance(fields, dict) else ((each["name"], each) for each in fields)


def _parts(schema: Schema) -> Iterator[Schema]:
    """The schemas of what the values of a type consist of, other than its fields."""
    if schema["type"] == "chain":
        yield schema["steps"][-1]
    for part in _PARTS:
        yield from _schemas(schema.get(part))


def _schemas(part: Any) -> Iterator[Schema]:
    """One schema; or those in a list, with or without labels, or by tag."""
    if isinstance(part, Mapping) and isinstance(part.get("type"), str):
        yield part
    elif isinstance(part, Mapping | list | tuple):
        for each in part.values() if isinstance(part, Mapping) else part:
            yield from _schemas(each)


def _varies(default: Schema) -> bool:
    """Whether the default is made anew from a clock, chance or the like."""
    make = default.get("default_factory")
    if make is None or default.get("default_factory_takes_data"):
        return False
    first = make()
    return any(make() != first for _ in range(_CLOCK_TICKS))


def _is_internal(function: Any) -> bool:
    """Whether it is how pydantic writes or reads one of its own types, with the parts as they are."""
    return getattr(getattr(function, "func", function), "__module__", "").startswith("pydantic._internal.")


def _masks(writer: Any) -> bool:
    return getattr(writer, "__module__", "") == "pydantic.types" and writer.__name__.startswith("_serialize_secret")


def _refusal(path: str, what: str, fix: str) -> ValueError:
    return ValueError(f"{path}: {what}; fix: {fix}")
