"""Personal fields: text about a person, which messages, rows and archives hold only encrypted.

`shared.sealing` encrypts them before a command is appended and decrypts what the API shows. Between the two, `decide`,
`evolve` and Spark pass them on as they are; they can't look inside.
"""

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

IN_SCHEMA = "x-personal"
"""What marks such a field in a JSON schema."""


class _Mark:
    """Says in every schema which fields are personal."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), IN_SCHEMA: True}


_MARK = _Mark()

Personal = Annotated[str, _MARK] | None
"""Text about the person that the aggregate's id stands for; None if it was not given, and once they are forgotten.

Give it no length or pattern: those of the encrypted text differ.
"""

SEALED = "sealed:1:"
"""How an encrypted text begins."""


@cache
def personal_fields(model: type[BaseModel]) -> frozenset[str]:
    """The names of its personal fields. Raises ValueError for a field of which a part is personal."""
    personal = {name for name, field in model.model_fields.items() if field.annotation == Personal}
    for name in model.model_fields.keys() - personal:
        field = model.model_fields[name]
        if _MARK in (*field.metadata, *_parts(field.annotation)):
            fix = "make it a field of the message itself, of the type Personal"
            raise ValueError(f"{model.__name__}.{name}: what is personal in it would not be encrypted; fix: {fix}")
    return frozenset(personal)


def _parts(annotation: Any, seen: frozenset[Any] = frozenset()) -> Iterator[Any]:
    """What a type consists of: the arguments of generics, the fields of models, and what annotates them."""
    yield annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
        for field in annotation.model_fields.values():
            yield from field.metadata
            yield from _parts(field.annotation, seen | {annotation})
    for each in get_args(annotation):
        yield from _parts(each, seen)
