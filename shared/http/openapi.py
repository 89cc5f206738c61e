"""The OpenAPI document: what FastAPI derives, corrected for problems and completed for every route."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from shared.http.problems import MEDIA_TYPE, Problem

Json = dict[str, Any]

DESCRIPTION = """\
Any worker answers for any key. Answers carry `Onefold-Position`; pass it as `min_position` and no answer is older.
Repeat a command with the same `Idempotency-Key` and it takes effect once. Errors are problems (RFC 9457): branch on
their `code`.
"""

EVERYWHERE = {
    "400": "Both Content-Length and Transfer-Encoding",
    "405": "The path has other methods; see Allow",
    "408": "The body did not arrive in time",
    "413": "The body is too large",
    "414": "Path and query are too long",
    "422": "Not a valid request; `errors` names the fields",
    "429": "Too many requests from this client; see Retry-After",
    "500": "A bug on our side",
    "503": "Not ready; try again after Retry-After, a command with the same Idempotency-Key",
}
_EXAMPLES: dict[str, Json] = {
    "404": {"code": "not_found", "detail": "nothing has the id 'ann'"},
    "409": {"code": "account.closed", "detail": "the account is closed"},
    "422": {"code": "request.invalid", "detail": "query.limit: Input should be less than or equal to 500"},
    "503": {"code": "not_ready", "detail": "the owner of this key is moving"},
}
_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "JWT",
    "description": "RS256 or ES256, from the configured issuer",
}
_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")


def install(api: FastAPI) -> None:
    """Make `api.openapi()` return the document below."""

    def openapi() -> Json:
        if api.openapi_schema is None:
            api.openapi_schema = _document(api)
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]


def _document(api: FastAPI) -> Json:
    document = get_openapi(title=api.title, version="1", description=DESCRIPTION, routes=api.routes)
    components: Json = document.setdefault("components", {})
    components["securitySchemes"] = {"HTTPBearer": _BEARER}
    schemas: Json = components.setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    for name in _FASTAPIS_OWN:
        schemas.pop(name, None)
    for operation in _operations(document):
        for parameter in operation.get("parameters", ()):
            parameter["schema"] = _never_null(parameter["schema"])
        responses: Json = operation["responses"]
        if "401" in responses:
            operation["security"] = [{"HTTPBearer": []}]
        for status, description in EVERYWHERE.items():
            responses.setdefault(status, {"description": description})
        for status, response in responses.items():
            if int(status) >= 400:
                response["content"] = {MEDIA_TYPE: _problem(status)}
            if status == "405":
                response["headers"] = {"Allow": {"schema": {"type": "string"}, "description": "methods"}}
            if status in ("429", "503"):
                response["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}}
    return document


def _operations(document: Json) -> Iterator[Json]:
    for methods in document["paths"].values():
        yield from methods.values()


def _never_null(schema: Json) -> Json:
    """A parameter is present or absent, never null, though FastAPI declares every optional one nullable."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**choices[0], **rest}


def _problem(status: str) -> Json:
    content: Json = {"schema": {"$ref": "#/components/schemas/Problem"}}
    if status in _EXAMPLES:
        content["example"] = {"title": HTTPStatus(int(status)).phrase, "status": int(status), **_EXAMPLES[status]}
    return content
