"""A table is folded by what is declared for it, never by something else."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from pipelines.catalog import UnknownTable, reactions_in, tables_in
from shared.runtime.checkout import Undeclared

TOPOLOGY = """
from shared.topology.topics import Table, Topic, Topology

COMMANDS, EVENTS = Topic("shop.commands.v1"), Topic("shop.events.v1")
TABLES = (Table("shops", source=COMMANDS), Table("levels", source=EVENTS))
TOPOLOGY = Topology("shop", topics=(COMMANDS, EVENTS), tables=TABLES)
"""
DECIDE = "from services.accounts.domain.decide import DECIDER"
LEVELS = """
from types import SimpleNamespace

READ_MODELS = [SimpleNamespace(table=SimpleNamespace(name="levels"))]
"""

_PACKAGES = count(1)


def package(folder: Path, **modules: str) -> str:
    """A new service with these modules, and an aggregate and a view of its events in its topology."""
    root = folder / f"shop{next(_PACKAGES)}"
    for name, text in {"topology": TOPOLOGY, **modules}.items():
        module = root.joinpath(*name.split("__")).with_suffix(".py")
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(text)
    return root.name


@pytest.mark.parametrize("projections", [{}, {"projections": "READ_MODELS = ()"}])
def test_a_view_without_a_read_model_is_refused(
    projections: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not folded with the aggregate's decider."""
    monkeypatch.syspath_prepend(tmp_path)
    fix = r"fix: add its ReadModel to READ_MODELS in projections\.py"
    with pytest.raises(UnknownTable, match=rf"no read model of its table levels; {fix}"):
        tables_in(package(tmp_path, domain__decide=DECIDE, **projections))


@pytest.mark.parametrize("domain", [{}, {"domain__events": ""}])
def test_an_aggregate_without_a_decider_is_refused(
    domain: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    fix = r"fix: add its Decider as DECIDER to domain/decide\.py"
    with pytest.raises(UnknownTable, match=rf"no decider of its table shops; {fix}"):
        tables_in(package(tmp_path, projections=LEVELS, **domain))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("topology", "TOPOLOGY"),
        ("projections", "READ_MODELS"),
        ("policies", "REACTIONS"),
        ("domain.decide", "DECIDER"),
    ],
)
def test_a_module_without_what_it_should_declare_is_an_error(
    module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuild that finds no reaction for a typing error would send nothing."""
    monkeypatch.syspath_prepend(tmp_path)
    modules = {"projections": LEVELS, "domain__decide": DECIDE, module.replace(".", "__"): ""}
    shop = package(tmp_path, **modules)
    file = module.replace(".", "/")
    with pytest.raises(Undeclared, match=rf"{module} has no {name}; fix: call it so in {file}\.py"):
        (tables_in(shop), reactions_in(shop))


def test_a_module_that_a_decider_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'shopp'"):
        tables_in(package(tmp_path, domain__decide="from shopp import DECIDER", projections=LEVELS))
