"""Personal fields: text about a person, which messages, rows and archives hold only encrypted.

`shared.privacy.sealing` encrypts them before a command is appended and decrypts what the API shows. Between the two,
`decide`, `evolve`, views and Spark pass them on as they are: types refuse what looks inside.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from inspect import isclass
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import CoreSchema
from pydantic_core.core_schema import DictSchema, any_schema

IN_SCHEMA = "x-personal"
"""What marks such a field in a JSON schema."""


class _Mark:
    """Says in every schema which fields are personal."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), IN_SCHEMA: True}


_MARK = _Mark()

if TYPE_CHECKING:

    class Encrypted:
        """Text that nobody without its person's key can read: it is passed on, not looked into. Tests make it."""

        def __init__(self, text: str) -> None: ...

else:
    Encrypted = str

Personal = Annotated[Encrypted, _MARK] | None
"""Text about the person whose id is the aggregate's id. It is None if it was not given, and once they are forgotten.

The domain has it only encrypted, and passes it on as it is. A constraint, such as a length or a pattern, would see the
encrypted text, so a field that has one is refused with ValueError.
"""

SEALED = "sealed:1:"
"""How an encrypted text begins."""


class _OfAnything(GenerateJsonSchema):
    """Of types that have no JSON schema, too, and with the types of keys."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """The schema is not for anybody to read."""

    def dict_schema(self, schema: DictSchema) -> JsonSchemaValue:
        return {"keys": self.generate_inner(schema.get("keys_schema", any_schema())), **super().dict_schema(schema)}


@cache
def personal_fields(model: type[BaseModel]) -> frozenset[str]:
    """The names of its personal fields. Raises ValueError for one with a constraint, or of which a part is personal."""
    personal = _personal(model)
    for name in personal:
        if rules := model.model_fields[name].metadata:
            raise ValueError(f"{model.__name__}.{name}: {rules[0]} sees the encrypted text; fix: leave it out")
    whole = model.model_json_schema(by_alias=False, schema_generator=_OfAnything)
    models = whole.pop("$defs", {})
    own = models.get(_named(whole), whole)  # there, if it refers to itself
    for name, schema in own.get("properties", {"root": own}).items():
        if name not in personal and _marked(schema, {**models}):
            fix = "make it a field of the message itself, of the type Personal"
            raise ValueError(f"{model.__name__}.{name}: what is personal in it would not be encrypted; fix: {fix}")
    return frozenset(personal)


def check_alike(types: Iterable[Any]) -> None:
    """Raises ValueError for a field that is personal in one of the models and not in another. types: may be unions."""
    models = [model for type_ in types for model in models_in(type_)]
    for model in models:
        for name in _personal(model):
            if bare := [other for other in models if name in other.model_fields and name not in _personal(other)]:
                raise ValueError(
                    f"{model.__name__}.{name} is personal, but {bare[0].__name__}.{name} is not: plain text would be "
                    f"kept, or encrypted text shown; fix: make both Personal, or rename one"
                )


def models_in(type_: Any) -> Iterator[type[BaseModel]]:
    """The model that it is, or those of the union."""
    if isclass(type_) and issubclass(type_, BaseModel):
        yield type_
    for part in get_args(type_):
        yield from models_in(part)


def _personal(model: type[BaseModel]) -> set[str]:
    return {name for name, field in model.model_fields.items() if field.annotation == Personal}


def _marked(schema: Any, models: dict[str, Any]) -> bool:
    """Whether the mark is in it. models: what it may refer to; those found are removed."""
    if isinstance(schema, list):
        return any(_marked(each, models) for each in schema)
    if not isinstance(schema, dict):
        return False
    named = models.pop(_named(schema), None)
    return IN_SCHEMA in schema or any(_marked(each, models) for each in (named, *schema.values()))


def _named(schema: JsonSchemaValue) -> str:
    """What it refers to, if it does."""
    return str(schema.get("$ref")).rpartition("/")[2]
