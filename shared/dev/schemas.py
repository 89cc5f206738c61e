"""`dev.py schemas`: the JSON schemas of each service's messages and states, and what has changed in them.

Those that its team has accepted are in the service's folder, so that a change of a message shows in a review.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import to_jsonable_python

from shared.dev.compatibility import COMMANDS, EVENTS, PUBLIC, READ_BY, STATES, Change, judged
from shared.dev.roundtrip import check_roundtrip
from shared.dev.samples import sample
from shared.dev.stages import StageFailed
from shared.domain.message import Event, Message
from shared.domain.upcasting import Upcasters
from shared.engine.processors import (
    AggregateProcessor,
    PolicyProcessor,
    Processor,
    ProjectionProcessor,
    PublicationProcessor,
)
from shared.engine.wiring import filled
from shared.topology.publication import public_type
from shared.topology.topics import Topology

ACCEPTED = "schemas.json"
Read = tuple[Sequence[type[Message]], Upcasters]
_WIDTH = 100

_PROSE = {"title", "description"}
_NAMED = {"properties", "$defs", "mapping"}  # whose keys are names, such as `title`
_VALUES = {"default", "const", "enum", "examples"}


def document_of(service: str) -> dict[str, Any]:
    """The document of one service of this checkout; see shared.dev.compatibility. Raises StageFailed."""
    app = _app(service)
    return described(app.topology, app.processors)


def own_messages(service: str) -> list[type[Message]]:
    """The commands and events in its document."""
    app = _app(service)
    commands, events = _commands(app.processors), _events(app.topology, app.processors)
    return list({each.TYPE: each for messages, _ in [*commands, *events] for each in messages}.values())


def _app(service: str) -> Any:
    try:
        app = import_module(f"services.{service}.app").app
    except ValueError as error:  # as for a new version without an upcaster
        raise StageFailed(f"services/{service} does not start: {error}", "correct it") from None
    try:
        check_lossless(app.processors)
    except ValueError as error:
        raise StageFailed(f"services/{service}: {error}", "correct it") from None
    return app


def check_lossless(processors: Iterable[Processor]) -> None:
    """Raises ValueError for a message of an aggregate, a view, a policy's commands or a publication, or for a
    state, that `check_roundtrip` refuses.
    """
    for each in processors:
        for message in _messages(each):
            check_roundtrip(message)
        if each.codec:
            check_roundtrip(each.codec.state_type, whole=True)


def _messages(processor: Processor) -> Sequence[type[Message]]:
    match processor:
        case AggregateProcessor(decider=decider):
            return (*decider.commands, *decider.events)
        case ProjectionProcessor(projection=projection):
            return projection.events
        case PolicyProcessor(policy=policy):
            return [command for commands in policy.commands.values() for command in commands]
        case PublicationProcessor(publication=publication):
            return publication.public
    return ()


def described(topology: Topology, processors: Sequence[Processor]) -> dict[str, Any]:
    """Its aggregates' commands and events, what others write for its views, the rows of its tables, and what it
    publishes.
    """
    public = [each.publication.public for each in processors if isinstance(each, PublicationProcessor)]
    return {
        COMMANDS: _entries(_commands(processors)),
        EVENTS: _entries(_events(topology, processors)),
        STATES: {
            table.name: {"version": topology.version, "upcast": [], "schema": schema_of(codec.state_type)}
            for table, codec in filled(processors).items()
            if table in topology.tables
        },
        **({PUBLIC: _published(public)} if public else {}),
    }


def _published(public: Iterable[Sequence[type[Event]]]) -> dict[str, Any]:
    return {
        public_type(each): {"version": each.VERSION, "upcast": [], "schema": schema_of(each)}
        for some in public
        for each in some
    }


def _commands(processors: Sequence[Processor]) -> list[Read]:
    deciders = [each.decider for each in processors if isinstance(each, AggregateProcessor)]
    return [(each.commands, each.upcasters) for each in deciders]


def _events(topology: Topology, processors: Sequence[Processor]) -> list[Read]:
    """Of topics of its own that have no copies of other services' events."""
    projections = [each.projection for each in processors if isinstance(each, ProjectionProcessor)]
    deciders = [each.decider for each in processors if isinstance(each, AggregateProcessor)]
    own = {*topology.topics}.difference(*(each.copies for each in processors))
    written = [(each.events, each.upcasters) for each in projections if each.table.source in own]
    return [*written, *((each.events, each.upcasters) for each in deciders)]


def _entries(reads: Iterable[Read]) -> dict[str, Any]:
    """The last one to read a type says what it is."""
    return {
        message.TYPE: {
            "version": message.VERSION,
            "upcast": sorted(version for type_, version in upcasters if type_ == message.TYPE),
            "schema": schema_of(message),
        }
        for messages, upcasters in reads
        for message in messages
    }


def schema_of(type_: Any) -> dict[str, Any]:
    """Its JSON schema, with the fields by the names that they are written by, and what `_Described` adds."""
    return TypeAdapter(type_).json_schema(schema_generator=_Described)


_SAYS_LITTLE = {"date", "datetime", "decimal", "fraction", "multi-host-url", "str", "time", "timedelta", "url", "uuid"}
_CHANGES_TEXT = ("strip_whitespace", "to_lower", "to_upper")
_NO_RULES = {"type", "ref", "metadata", "serialization", "strict", "microseconds_precision"}
_TOLD = {"min_length", "max_length", "pattern", "regex_engine"}


class _Described(GenerateJsonSchema):
    """Adds what pydantic reads by and JSON Schema has no word for: pydantic's own rules of text, numbers and times, the
    types of keys, the names that a field is read by, and defaults that are made.
    """

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        described, rules = super().generate_inner(schema), _untold(schema)
        if "keys_schema" in schema and (keys := self.generate_inner(schema["keys_schema"])) != {"type": "string"}:
            rules["x-keys"] = keys
        return {**rules, **described} if rules else described

    def str_schema(self, schema: Any) -> JsonSchemaValue:
        of_the_model = [rule for rule in _CHANGES_TEXT if getattr(self._config, f"str_{rule}")]
        return {**dict.fromkeys(of_the_model, True), **super().str_schema(schema)}

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        number, text = super().decimal_schema(schema)["anyOf"]
        return {"anyOf": [number, {**text, "format": "decimal"}]}

    def complex_schema(self, schema: Any) -> JsonSchemaValue:
        return {**super().complex_schema(schema), "format": "complex"}

    def get_default_value(self, schema: Any) -> Any:
        if "default_factory" in schema and not schema.get("default_factory_takes_data"):
            made = schema["default_factory"]()
            if made == schema["default_factory"]():  # else it is another one each time, such as an id
                return made
        return super().get_default_value(schema)

    def _named_required_fields_schema(self, named_required_fields: Sequence[tuple[str, bool, Any]]) -> JsonSchemaValue:
        """Its fields by the names that they are written by."""
        read_by, fields = dict[str, list[str]](), list[tuple[str, bool, Any]]()
        for name, required, field in named_required_fields:
            written = field.get("serialization_alias", name)
            read_by[written] = self._read_by(name, field)
            fields.append((written, required, {**field, "validation_alias": written}))
        described = super()._named_required_fields_schema(fields)
        for name, schema in described["properties"].items():
            if read_by[name] != [name]:
                schema[READ_BY] = read_by[name]
        return described

    def _read_by(self, name: str, field: Any) -> list[str]:
        """A part of another field is such as `other.0`."""
        alias, config = field.get("validation_alias"), self._config
        if alias is None:
            return [name]
        paths = [[alias]] if isinstance(alias, str) else alias if isinstance(alias[0], list) else [alias]
        names = [".".join(map(str, path)) for path in paths] if config.validate_by_alias else []
        return [*names, name] if config.validate_by_name or config.populate_by_name else names


def _untold(schema: Any) -> dict[str, Any]:
    """The rules by which pydantic reads it that its JSON schema may leave out, such as `max_digits`."""
    if schema["type"] in _SAYS_LITTLE:
        return {rule: to_jsonable_python(schema[rule]) for rule in schema.keys() - _NO_RULES - _TOLD}
    if schema["type"] not in ("function-after", "function-wrap"):
        return {}
    function = schema["function"]["function"]
    if getattr(function, "__module__", None) == "pydantic.networks":  # a URL
        return _untold(schema["schema"])
    bound = schema["type"] == "function-after" and isinstance(function, partial)  # of a Day, for instance
    if bound and getattr(function.func, "__module__", None) == "pydantic._internal._validators":
        return {rule: to_jsonable_python(value) for rule, value in function.keywords.items()}
    return {}


def bare(schema: Any) -> Any:
    """Without prose, which changes nothing for a reader."""
    if isinstance(schema, list):
        return [bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _inside(name, part) for name, part in schema.items() if name not in _PROSE}


def _inside(name: str, part: Any) -> Any:
    if name in _VALUES:
        return part
    return {each: bare(inner) for each, inner in part.items()} if name in _NAMED else bare(part)


def as_text(document: Mapping[str, Any]) -> str:
    return _laid_out(bare(document), "") + "\n"


def _laid_out(part: Any, indent: str) -> str:
    """As JSON, with what fits into a line in one, so that a change of a field shows as a line or two."""
    line = json.dumps(part, ensure_ascii=False)
    if not isinstance(part, dict) or len(indent) + len(line) <= _WIDTH:
        return line
    inner = indent + "  "
    rows = [f"{inner}{json.dumps(name)}: {_laid_out(each, inner)}" for name, each in part.items()]
    return ",\n".join(rows).join(("{\n", f"\n{indent}}}"))


def file_of(root: Path, service: str) -> Path:
    return root / "services" / service / ACCEPTED


def accepted(root: Path, service: str) -> Any:
    """The document that the service's team has accepted; None before the first."""
    file = file_of(root, service)
    return json.loads(file.read_text()) if file.exists() else None


def last_tag(root: Path) -> str | None:
    """The latest tag before the commit that is checked out, or at it."""
    return (_git(root, "describe", "--tags", "--abbrev=0") or "").strip() or None


def released(root: Path, service: str, tag: str | None) -> Any:
    """The document that was accepted in that release; None if there was none."""
    text = tag and _git(root, "show", f"{tag}:./{file_of(Path(), service)}")
    return json.loads(text) if text else None


def _git(root: Path, *arguments: str) -> str | None:
    """None: it cannot say, or is not there."""
    try:
        run = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return run.stdout if run.returncode == 0 else None


@dataclass(frozen=True, slots=True)
class Report:
    """lines: what has changed. differ: the services that are not as accepted."""

    lines: tuple[str, ...]
    differ: tuple[str, ...]


def compared(root: Path, services: Sequence[str]) -> Report:
    """What has changed since the documents were accepted, and what a release since the last tag brings."""
    tag, lines, differ, without = last_tag(root), list[str](), list[str](), list[str]()
    for service in services:
        present, known, before = document_of(service), accepted(root, service), released(root, service, tag)
        since_accepted = judged(present if known is None else known, present)
        lines += told(f"{service} is not as in {file_of(Path(), service)}:", since_accepted)
        lines += told(f"{service} since {tag}:", judged(present if before is None else before, present))
        edited = _edited_golden(root, service, tag)
        lines += [f"{each} is not as a producer wrote it; fix: `git checkout {tag} -- {each}`" for each in edited]
        if since_accepted or edited:
            differ.append(service)
        if known is None:
            without.append(service)
    if not differ:
        none = f"; no schemas are accepted yet of {', '.join(without)}" if without else ""
        lines.append(f"as accepted{none}")
    return Report(tuple(lines), tuple(differ))


def _edited_golden(root: Path, service: str, tag: str | None) -> list[str]:
    """The golden records of the release that are no longer as they were."""
    if tag is None:
        return []
    changed = ("diff", "--name-only", "--relative", "--diff-filter=M", tag, "--", str(_golden_folder(Path(), service)))
    return (_git(root, *changed) or "").splitlines()


def _golden_folder(root: Path, service: str) -> Path:
    return root / "tests" / "unit" / service / "golden"


def told(heading: str, changes: Sequence[Change]) -> list[str]:
    """Each change, followed by the order in which to release it and those like it."""
    lines = [heading] if changes else []
    for order in dict.fromkeys(change.order for change in changes):
        lines += [f"  {change}" for change in changes if change.order == order]
        lines.append(f"    release: {order}")
    return lines


def accept(root: Path, services: Sequence[str], breaking: bool) -> Iterator[str]:
    """Writes each service's document and the golden records that it lacks; what was written, and what could not be.

    Raises StageFailed, and writes nothing, for a change that no order of release makes safe, unless it may be breaking.
    """
    documents = {service: document_of(service) for service in services}
    refused = [line for service, present in documents.items() for line in _refused(root, service, present)]
    if refused and not breaking:
        raise StageFailed(
            "\n".join(refused),
            "correct it as said above, or `schemas --accept --breaking` if nothing that matters was ever written",
        )
    for service, present in documents.items():
        file, text = file_of(root, service), as_text(present)
        if text != (file.read_text() if file.exists() else None):
            file.write_text(text)
            yield f"wrote   {file.relative_to(root)}"
        yield from golden(root, service)


def _refused(root: Path, service: str, present: Mapping[str, Any]) -> list[str]:
    changes = judged(accepted(root, service) or {}, present)
    heading = f"{service} would not read what was written before"
    return told(heading, [change for change in changes if change.refused])


def golden(root: Path, service: str) -> Iterator[str]:
    """Writes a sample of each message that has no golden record of its present version yet; what was written."""
    for message in own_messages(service):
        file = _golden_folder(root, service) / f"{message.TYPE}.v{message.VERSION}.json"
        if not file.exists():
            yield _write_sample(message, file, root)


def _write_sample(message: type[Message], file: Path, root: Path) -> str:
    name = file.relative_to(root)
    try:
        text = sample(message)
    except (RecursionError, ValidationError, re.error) as error:
        return f"write   {name} by hand, as no sample can be made: {error}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return f"wrote   {name}: see that it is what a producer writes"
