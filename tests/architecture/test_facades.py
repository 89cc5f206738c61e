"""What a service imports of `shared` is named, and explained, in one place for each kind of its modules."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

import shared.domain
import shared.service
import shared.sinks
import shared.topology

FACADES = (shared.domain, shared.topology, shared.service, shared.sinks)
EXPLAINED = re.compile(r"^(\w+) {2,}\S", re.MULTILINE)


@pytest.mark.parametrize("facade", FACADES, ids=lambda facade: facade.__name__)
def test_every_name_for_services_is_explained_in_one_line(facade: ModuleType) -> None:
    _, _, names = (facade.__doc__ or "").partition("imports from here:\n")
    assert sorted(EXPLAINED.findall(names)) == sorted(facade.__all__), f"fix: the first lines of {facade.__name__}"


def test_the_names_of_a_pure_service_are_few() -> None:
    assert len([*shared.domain.__all__, *shared.topology.__all__]) <= 29
