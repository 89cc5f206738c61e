"""Every import contract ("door") of pyproject.toml breaks on one forbidden import, planted in an unlisted service."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("services", "shared", "pipelines", "demo", "bench")

# contract id, module that imports, what it must not import
PLANTED = [
    ("pure-core", "services.newcomer.domain.decide", "faust"),
    ("pure-core", "services.newcomer.domain.state", "time"),
    ("pure-core", "services.newcomer.domain.events", "shared.runtime.settings"),
    ("pure-core", "services.newcomer.contracts.neighbour", "faust"),
    ("pure-core", "shared.domain.planted", "aiohttp"),
    ("pure-rest", "services.neighbour.topology", "shared.runtime.settings"),
    ("pure-rest", "services.newcomer.policies", "random"),
    ("pure-rest", "services.newcomer.projections", "confluent_kafka"),
    ("pure-rest", "services.newcomer.service", "shared.service"),
    ("kafka", "shared.engine.planted", "confluent_kafka"),
    ("sql", "shared.http.planted", "sqlalchemy"),
    ("sql", "services.newcomer.api", "psycopg"),
    ("faust", "services.newcomer.api", "faust"),
    ("faust", "shared.engine.planted", "faust"),
    ("aiokafka", "shared.http.planted", "aiokafka"),
    ("rocksdb", "shared.engine.planted", "rocksdict"),
    ("rooms", "shared.tables.planted", "shared.engine.batch"),
    ("rooms", "shared.http.planted", "shared.group.node"),
    ("rooms", "shared.sinks.planted", "shared.tables.store"),
    ("fastapi", "services.newcomer.handlers", "fastapi"),
    ("spark", "services.newcomer.app", "pyspark"),
    ("textual", "shared.dev.planted", "textual"),
    ("shared", "shared.planted", "services.neighbour.topology"),
    ("shared", "shared.dev.planted", "pipelines"),
    ("services", "services.newcomer.app", "services.neighbour.topology"),
    ("facade", "services.newcomer.api", "shared.http.commands"),
    ("facade", "services.newcomer.domain.decide", "shared.domain.decider"),
    ("pipelines", "pipelines.planted", "services.newcomer.app"),
    ("pipelines", "pipelines.planted", "shared.http"),
]


def lint_imports(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache", *options]
    wide = os.environ | {"COLUMNS": "200"}
    return subprocess.run(command, cwd=tree, env=wide, capture_output=True, text=True, timeout=60)


def plant(tree: Path, importer: str, imported: str) -> None:
    path = tree.joinpath(*importer.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    for package in path.relative_to(tree).parents[:-1]:
        (tree / package / "__init__.py").touch()
    with path.open("a") as module:
        module.write(f"import {imported}\n")


@pytest.fixture(scope="module")
def planted_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for package in (*PACKAGES, "tests/architecture"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    for _, importer, imported in PLANTED:
        plant(tree, importer, imported)
    return tree


def contract_ids() -> list[str]:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [contract["id"] for contract in configuration["tool"]["importlinter"]["contracts"]]


def test_every_door_is_closed() -> None:
    run = lint_imports(ROOT)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("contract", contract_ids())
def test_a_door_breaks_on_a_forbidden_import(contract: str, planted_tree: Path) -> None:
    run = lint_imports(planted_tree, f"--contract={contract}")
    mine = [(importer, imported) for id_, importer, imported in PLANTED if id_ == contract]
    assert mine, f"no import is planted for {contract}"
    assert run.returncode == 1
    for importer, imported in mine:
        assert f"{importer} -> {imported} (l." in run.stdout
