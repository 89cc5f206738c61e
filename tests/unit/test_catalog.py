"""A table is folded by what is declared for it, never by something else."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from pipelines.catalog import UnknownTable, policies_in, tables_in
from shared.runtime.declared import Undeclared

DECLARED = """
from tests.accounts.domain.decide import DECIDER
from shared.topology import Projection, Service, Table, Topic, Topology

COMMANDS, EVENTS = Topic("shop.commands.v1"), Topic("shop.events.v1")
LEVELS = Table("levels", source=EVENTS)
TOPOLOGY = Topology("shop", topics=(COMMANDS, EVENTS), tables=(Table("shops", source=COMMANDS), LEVELS))
PROJECTIONS = [Projection(LEVELS, lambda view, *_: view, initial=0, events=DECIDER.events[:1], state=int)]
"""

_PACKAGES = count(1)


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)


def package(folder: Path, **modules: str) -> str:
    """A new package with these modules."""
    root = folder / f"shop{next(_PACKAGES)}"
    root.mkdir()
    for name, text in modules.items():
        (root / f"{name}.py").write_text(text)
    return root.name


def declaring(folder: Path, parts: str) -> str:
    """A service with an aggregate and a view of its events in its topology, and these parts."""
    return package(folder, service=f"{DECLARED}\nSERVICE = Service(TOPOLOGY, {parts})")


def test_each_table_is_folded_by_what_is_declared_for_it(tmp_path: Path) -> None:
    shops, levels = tables_in(declaring(tmp_path, "decider=DECIDER, projections=PROJECTIONS"))
    assert (shops.is_view, shops.events.name) == (False, "shop.events.v1")
    assert (levels.is_view, levels.initial) == (True, 0)


@pytest.mark.parametrize(
    ("parts", "lacks"),
    [("decider=DECIDER", "projection of its table levels"), ("projections=PROJECTIONS", "decider of its table shops")],
)
def test_a_table_of_which_nothing_says_how_it_is_computed_is_refused(parts: str, lacks: str, tmp_path: Path) -> None:
    """A view is not folded with the aggregate's decider."""
    with pytest.raises(UnknownTable, match=rf"no {lacks}; fix: give it to SERVICE in service\.py"):
        tables_in(declaring(tmp_path, parts))


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        ({}, r"there is no shop\d+\.service; fix: write service\.py, with SERVICE in it"),
        ({"service": DECLARED}, r"service has no SERVICE; fix: call it so in service\.py"),
    ],
)
def test_a_service_that_is_not_declared_is_an_error(modules: dict[str, str], says: str, tmp_path: Path) -> None:
    """A rebuild that finds no policy for a typing error would send nothing."""
    with pytest.raises(Undeclared, match=says):
        policies_in(package(tmp_path, **modules))


def test_a_module_that_a_declaration_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(Undeclared, match=r"service\.py:1: ModuleNotFoundError: No module named 'shopp'"):
        tables_in(package(tmp_path, service="from shopp import SERVICE"))
