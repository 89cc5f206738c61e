"""Which fields of a model are personal, and which could not be encrypted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, create_model

from shared.es.message import Command, Part, check_types
from shared.es.personal import Personal, personal_fields


class Name(Part):
    first: Personal


class Register(Command):
    TYPE = "customer.register"

    name: Personal
    street: Personal = None
    limit_cents: int = 0


def test_the_personal_fields_of_a_model_are_named_by_its_schema_too() -> None:
    assert personal_fields(Register) == {"name", "street"}
    properties = TypeAdapter(Register).json_schema()["properties"]
    assert {name for name, schema in properties.items() if "x-personal" in str(schema)} == {"name", "street"}


def test_a_model_without_any_has_none() -> None:
    assert personal_fields(create_model("Plain", note=(str | None, None))) == frozenset()


@pytest.mark.parametrize("kind", [tuple[Personal, ...], dict[str, Personal], Name, tuple[Name, ...], Name | None])
def test_what_is_personal_deeper_inside_is_refused_because_it_would_not_be_encrypted(kind: Any) -> None:
    message: type[BaseModel] = create_model("Move", __base__=Command, to=(kind, ...))
    message.TYPE = "customer.move"
    with pytest.raises(ValueError, match=r"Move\.to: what is personal in it would not be encrypted; fix: make it"):
        check_types([message])
