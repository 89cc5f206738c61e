"""Which fields of a model are personal, and which could not be encrypted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, RootModel, TypeAdapter, create_model
from typing_extensions import TypeAliasType, TypedDict

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
    assert personal_fields(create_model("Odd", call=(Callable[[], None], print))) == frozenset()
    assert personal_fields(RootModel[list[int]]) == frozenset()


class Called(TypedDict):
    name: Personal


class Pair(NamedTuple):
    first: Personal
    last: Personal


@dataclass
class Contact:
    name: Personal


class Tree(Part):
    branches: tuple[Tree, ...] = ()
    name: Name | None = None


@pytest.mark.parametrize(
    "kind",
    [
        tuple[Personal, ...],
        dict[str, Personal],
        dict[Personal, int],
        Name,
        tuple[Name, ...],
        Name | None,
        Called,
        Pair,
        Contact,
        TypeAliasType("Nickname", Personal),
        Tree,
    ],
)
def test_what_is_personal_deeper_inside_is_refused_because_it_would_not_be_encrypted(kind: Any) -> None:
    message: type[BaseModel] = create_model("Move", __base__=Command, to=(kind, ...))
    message.TYPE = "customer.move"
    with pytest.raises(ValueError, match=r"Move\.to: what is personal in it would not be encrypted; fix: make it"):
        check_types([message])


def test_a_model_of_models_of_its_own_kind_is_looked_into_once() -> None:
    with pytest.raises(ValueError, match=r"Tree\.branches: what is personal"):
        personal_fields(Tree)
    with pytest.raises(ValueError, match=r"\.root: what is personal"):
        personal_fields(RootModel[list[Personal]])
