"""Avro and Protobuf made of a service's messages are what their own tools take, and hold its golden records."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import fastavro
import pytest
from pydantic import BaseModel, TypeAdapter
from typer.testing import CliRunner

from shared.dev.cli import cli
from shared.dev.compatibility import COMMANDS, EVENTS, STATES
from shared.dev.formats import avro, proto, shown_as
from shared.dev.schemas import document_of
from shared.dev.stages import StageFailed
from shared.domain.message import Event, Part
from shared.domain.state import State
from shared.runtime.checkout import CHECKOUT, found_services


class Tree(Part):
    branches: tuple[Tree, ...] = ()


class Open(State):
    """Every shape that a field can have."""

    phase: Literal["open"] = "open"
    needed: int
    text: str | None = None
    other: str | None = "other"
    either: int | str | None = None
    several: tuple[int | None, ...] = ()
    pair: tuple[int, str] = (1, "a")
    matrix: tuple[tuple[int, ...], ...] = ()
    trees: tuple[Tree, ...] = ()
    tree: Tree | None = None
    by_name: Mapping[str, Tree] = {}
    anything: Any = None
    sizes: Mapping[str, float | None] = {}
    yes: bool = True


class Closed(State):
    phase: Literal["closed"] = "closed"


OPEN = Open(
    needed=1,
    either="a",
    several=(1, None),
    matrix=((1,),),
    trees=(Tree(branches=(Tree(),)),),
    tree=Tree(),
    by_name={"a": Tree()},
    anything="any",
    sizes={"a": 1.5},
)
SHAPES = {
    COMMANDS: {},
    EVENTS: {},
    STATES: {"table": {"version": 1, "upcast": [], "schema": TypeAdapter(Open | Closed).json_schema()}},
}


def golden(service: str) -> dict[str, Any]:
    """The data of its own messages, by the name of the record; the latest version of each."""
    found = sorted((CHECKOUT / "tests" / "unit" / service / "golden").glob("*.json"))
    records = [json.loads(path.read_bytes()) for path in found]
    return {_name(each["type"]): each["data"] for each in records}


def _name(type_: str) -> str:
    return "".join(word.title() for word in type_.replace("_", ".").split("."))


def samples(service: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if service == "shapes":
        return SHAPES, {"TableOpen": OPEN.model_dump(mode="json"), "TableClosed": {"phase": "closed"}}
    return document_of(service), golden(service)


@pytest.fixture(params=["shapes", *found_services()])
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_avro_takes_the_schemas_and_the_golden_records(service: str) -> None:
    document, data = samples(service)
    records = avro(service, document)
    fastavro.parse_schema(json.loads(json.dumps(records)))
    named: dict[str, Any] = {}
    for record in records:
        parsed = fastavro.parse_schema(dict(record), named)
        if (value := data.get(record["name"])) is not None:
            defaults = {each["name"]: each["default"] for each in record["fields"] if "default" in each}
            assert fastavro.validate(defaults | value, parsed)
    assert data.keys() <= {record["name"] for record in records}


def test_protoc_takes_the_file_and_its_messages_the_golden_records(service: str, tmp_path: Path) -> None:
    document, data = samples(service)
    (tmp_path / f"{service}.proto").write_text(proto(service, document))
    made = f"--descriptor_set_out={tmp_path}/made"
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", "--include_imports", made]
    subprocess.run([*protoc, f"{service}.proto"], check=True)
    protobuf: Any = importlib.import_module("google.protobuf.json_format")
    pools: Any = importlib.import_module("google.protobuf.message_factory")
    descriptors: Any = importlib.import_module("google.protobuf.descriptor_pb2")
    files = descriptors.FileDescriptorSet.FromString((tmp_path / "made").read_bytes()).file
    messages = pools.GetMessages(files)
    for name, value in data.items():
        read = protobuf.ParseDict(value, messages[f"{service}.{name}"]())
        written = protobuf.MessageToDict(read, preserving_proto_field_name=True)
        assert {field: _plain(each) for field, each in written.items()} == {
            field: _plain(each) for field, each in value.items() if field in written
        }


def _plain(value: Any) -> Any:
    """Protobuf's JSON has 64-bit integers as text, and leaves out what is empty."""
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items() if each not in ([], None, "")}
        case list():
            return [_plain(each) for each in value]
        case bool():
            return value
        case int() | float():
            return str(value).removesuffix(".0")
        case _:
            return value


class Line(Part):
    sku: str


class Lines(Event):
    lines: tuple[Line, ...]
    more: tuple[Line, ...] = ()


class Opened(State):
    phase: Literal["opened"] = "opened"


def test_each_record_has_a_name_of_its_own() -> None:
    """The event and the table's phase would both be AccountOpened, the event and the part AccountPlacedLine."""
    types: dict[str, type[BaseModel]] = {"account.opened": Open, "account.placed": Lines, "account.placed_line": Closed}
    events = {name: {"schema": each.model_json_schema()} for name, each in types.items()}
    document = {COMMANDS: {}, EVENTS: events, STATES: {"account": {"schema": Opened.model_json_schema()}}}
    placed, line, state = avro("shapes", document)[1:]
    fastavro.parse_schema(avro("shapes", document))
    assert [line["name"], state["name"]] == ["AccountPlacedLine", "AccountOpened2"]
    first, again = (field["type"]["items"] for field in placed["fields"])
    assert (first["name"], again) == ("AccountPlacedLine2", "AccountPlacedLine2")
    assert "message AccountOpened2 {" in proto("shapes", document)


def test_json_has_the_prose_too() -> None:
    told = json.loads(shown_as("json", "shapes", SHAPES))
    assert told[STATES]["table"]["schema"]["$defs"]["Open"]["description"] == Open.__doc__


def test_the_command_prints_the_format_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.dev.here.found_services", lambda: ["shapes"])
    monkeypatch.setattr("shared.dev.schemas.document_of", {"shapes": SHAPES}.get)
    said = CliRunner().invoke(cli, ["schemas", "shapes", "--format", "proto"])
    assert said.exit_code == 0
    assert said.stdout == proto("shapes", SHAPES) + "\n"
    with pytest.raises(StageFailed, match="--format shows one service"):
        CliRunner().invoke(cli, ["schemas", "--format", "proto"], catch_exceptions=False)


def test_a_fields_number_does_not_depend_on_others() -> None:
    class Wider(Open):
        before: int = 0

    one, two = (
        proto("shapes", {COMMANDS: {}, EVENTS: {}, STATES: {"table": {"schema": each.model_json_schema()}}})
        for each in (Open, Wider)
    )
    assert {line for line in one.splitlines() if "=" in line} < {line for line in two.splitlines() if "=" in line}
