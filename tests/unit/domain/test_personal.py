"""Which fields of a model are personal, and which could not be encrypted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import pytest
from pydantic import AfterValidator, BaseModel, Field, RootModel, TypeAdapter, create_model
from typing_extensions import TypeAliasType, TypedDict

from shared.domain.decider import Decider
from shared.domain.message import Command, Event, Part, check_types
from shared.domain.personal import Encrypted, Personal, personal_fields
from shared.domain.state import State


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


def test_code_that_looks_into_a_personal_text_is_refused_by_mypy() -> None:
    """Between the API's two ends it is encrypted. mypy would tell if it no longer refused one of these lines."""
    name = Register(name=Encrypted("sealed:1:YQ==:YQ==")).name
    assert name
    assert name.startswith("sealed:")  # type: ignore[attr-defined]
    assert name != "Ann"  # type: ignore[comparison-overlap]


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


@pytest.mark.parametrize("constraint", [Field(max_length=50), Field(pattern="^[A-Z]"), AfterValidator(str)])
def test_a_constraint_is_refused_because_it_would_see_the_encrypted_text(constraint: Any) -> None:
    register = create_model("Register", __base__=Register, name=(Annotated[Personal, constraint], ...))
    with pytest.raises(ValueError, match=r"Register\.name: .* sees the encrypted text; fix: leave it out"):
        check_types([register])


def test_a_description_is_no_constraint() -> None:
    described = create_model("Register", __base__=Register, name=(Personal, Field(None, description="who")))
    assert personal_fields(described) == {"name", "street"}


class Registered(Event):
    TYPE = "customer.registered"

    name: Personal


class NamedBare(Registered):
    name: str | None  # type: ignore[assignment]


class Enter(Register):
    name: str | None  # type: ignore[assignment]


class Unknown(State):
    phase: str = ""


class Known(State):
    name: Personal = None


class KnownBare(State):
    name: str | None = None


@pytest.mark.parametrize(
    ("command", "event", "state", "which"),
    [
        (Enter, Registered, Unknown, r"Registered\.name is personal, but Enter\.name is not"),
        (Register, NamedBare, Unknown, r"Register\.name is personal, but NamedBare\.name is not"),
        (Register, Registered, Unknown | KnownBare, r"Register\.name is personal, but KnownBare\.name is not"),
        (Enter, NamedBare, Annotated[Unknown | Known, "union"], r"Known\.name is personal, but Enter\.name is not"),
    ],
)
def test_a_field_is_personal_in_all_of_a_decider_or_in_none(command: Any, event: Any, state: Any, which: str) -> None:
    with pytest.raises(ValueError, match=which + ": .*; fix: make both Personal, or rename one"):
        Decider(lambda *_: [], lambda state, _: state, Unknown(), (command,), (event,), state)


def test_a_decider_of_which_all_fields_of_a_name_are_personal_is_taken() -> None:
    Decider(lambda *_: [], lambda state, _: state, Unknown(), (Register,), (Registered,), Unknown | Known)
