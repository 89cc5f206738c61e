"""What a service imports of `shared` is named, and explained, in one place for each kind of its modules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from inspect import isclass, isfunction, signature
from types import ModuleType

import pytest
from typing_extensions import is_protocol

import shared.domain
import shared.effects
import shared.service
import shared.sinks
import shared.topology

FACADES = (shared.domain, shared.topology, shared.service, shared.sinks, shared.effects)
EXPLAINED = re.compile(r"^(\w+) {2,}\S", re.MULTILINE)


@pytest.mark.parametrize("facade", FACADES, ids=lambda facade: facade.__name__)
def test_every_name_for_services_is_explained_in_one_line(facade: ModuleType) -> None:
    _, _, names = (facade.__doc__ or "").partition("imports from here:\n")
    assert sorted(EXPLAINED.findall(names)) == sorted(facade.__all__), f"fix: the first lines of {facade.__name__}"


def arguments(declared: object) -> Iterable[str]:
    """What it is called with, if it is a function, or a class that says so itself."""
    for fields in ("__struct_fields__", "_fields", "model_fields"):
        if found := getattr(declared, fields, ()):
            return [*found]
    if isfunction(declared) or (isclass(declared) and "__init__" in vars(declared) and not is_protocol(declared)):
        return signature(declared).parameters
    return ()


@pytest.mark.parametrize("facade", FACADES, ids=lambda facade: facade.__name__)
def test_every_argument_is_explained_where_its_name_is_declared(facade: ModuleType) -> None:
    declared = {name: getattr(facade, name) for name in facade.__all__}
    assert [
        f"{name}({argument})"
        for name, each in declared.items()
        for argument in arguments(each)
        if not re.search(rf"\b{argument}\b", each.__doc__ or "")
    ] == []


def test_the_names_of_a_pure_service_are_few() -> None:
    assert len([*shared.domain.__all__, *shared.topology.__all__]) <= 34
