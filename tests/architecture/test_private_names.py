"""What is used of FastAPI, Starlette, uvicorn and pydantic beyond what they document is listed, there, and pinned.

A new import is found. A new private attribute, or a name that is compared as text, is not: whoever uses one lists it.

That it also does what is expected is tested where it is used: tests/unit/http/test_routing.py and test_server.py,
tests/unit/dev/test_roundtrip.py and test_schemas.py.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi._compat import ModelField
from fastapi.dependencies.models import Dependant
from pydantic.json_schema import GenerateJsonSchema
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shared.dev import schemas
from shared.http import server
from tests.private_names import is_pinned, is_there, overrides, takes

ROOT = Path(__file__).parents[2]
PACKAGES = {"fastapi", "starlette", "uvicorn", "pydantic"}

DOCUMENTED = {
    *("fastapi", "fastapi.exceptions", "fastapi.openapi.utils", "fastapi.responses", "fastapi.routing"),
    *("fastapi.security", "fastapi.sse", "fastapi.staticfiles"),
    *("starlette.exceptions", "starlette.middleware.cors", "starlette.middleware.trustedhost"),
    *("starlette.requests", "starlette.responses", "starlette.types", "uvicorn"),
    *("pydantic", "pydantic.alias_generators", "pydantic.errors", "pydantic.fields", "pydantic.json_schema"),
}

# Of each other module, the names that are used; a function with the names of its parameters.
FUNCTIONS = {
    "fastapi._compat.field_annotation_is_sequence": ["annotation"],
    "fastapi.dependencies.utils.get_flat_params": ["dependant"],
    "fastapi.dependencies.utils.get_typed_return_annotation": ["call"],
    "fastapi.dependencies.utils.get_validation_alias": ["field"],
    "starlette.routing.request_response": ["func"],
}
CLASSES = {
    "fastapi.dependencies.models.Dependant",
    "fastapi.params.Path",
    "starlette.routing.BaseRoute",
    "starlette.routing.Match",
    "starlette.routing.Mount",
    "starlette.routing.Route",
    "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol",
    "uvicorn.protocols.http.httptools_impl.RequestResponseCycle",
}
ATTRIBUTES: dict[type, set[str]] = {
    Dependant: {
        *("body_params", "cookie_params", "dependencies", "header_params", "path_params", "query_params"),
        "request_param_name",
    },
    HttpToolsProtocol: {
        *("app", "client", "cycle", "headers", "loop", "parser", "pipeline", "send_400_response"),
        *("timeout_keep_alive_handler", "transport", "url"),
    },
    ModelField: {"name", "validate"},
    RequestResponseCycle: {"keep_alive", "more_body", "response_complete", "response_started"},
    uvicorn.Server: {"config", "should_exit", "started"},
    GenerateJsonSchema: {"_config", "_named_required_fields_schema"},
}
OVERRIDING = [server._Connection, server._Server, schemas._Described]


def imported() -> Iterator[str]:
    """What this project's code imports from undocumented modules of these packages, as `module.name`."""
    for file in (file for room in ("shared", "services", "pipelines") for file in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.ImportFrom(module=str(module), names=names) if module not in DOCUMENTED:
                    if module.partition(".")[0] in PACKAGES:
                        yield from (f"{module}.{each.name}" for each in names)
                case ast.Import(names=names):
                    named = (each.name for each in names if each.name not in DOCUMENTED)
                    yield from (name for name in named if name.partition(".")[0] in PACKAGES)


def found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def test_what_is_not_documented_is_listed() -> None:
    assert set(imported()) == FUNCTIONS.keys() | CLASSES


@pytest.mark.parametrize("path", FUNCTIONS)
def test_a_function_takes_what_it_took(path: str) -> None:
    assert list(inspect.signature(found(path)).parameters) == FUNCTIONS[path]


@pytest.mark.parametrize("owner", ATTRIBUTES)
def test_an_attribute_is_there(owner: type) -> None:
    assert [name for name in ATTRIBUTES[owner] if not is_there(owner, name)] == []


@pytest.mark.parametrize("kind", OVERRIDING)
def test_an_override_takes_the_arguments_of_its_base(kind: type) -> None:
    for name, method, base in overrides(kind):
        assert takes(method, base), f"{kind.__name__}.{name}{inspect.signature(method)}: {inspect.signature(base)}"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_the_versions_are_the_pinned_ones(package: str) -> None:
    assert is_pinned(package)
