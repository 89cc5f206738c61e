"""What processes do not import: before a verb or a worker does anything, its imports cost most of its CPU."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from shared.dev.cli import VERBS, cli

OF_DATABASES = {"sqlalchemy", "psycopg"}
OF_HTTP = {"fastapi", "uvicorn", "aiohttp"}
OF_WORKERS = {"faust", "rocksdict", "aiokafka"}
OF_PIPELINES = {"pyspark"}


def imported(program: str, *arguments: str) -> set[str]:
    """Packages and modules, by the end of a process of its own."""
    atexit = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    command = [sys.executable, "-P", "-c", atexit + program, *arguments]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return {*run.stderr.splitlines()[-1].split()}


@pytest.mark.parametrize("verb", ["down", "worker", "new-service", "topics"])
def test_a_verb_imports_what_it_needs_alone(verb: str) -> None:
    found = imported("from shared.dev.cli import main\nmain()", verb, "--help")
    assert found & (OF_DATABASES | OF_HTTP | OF_WORKERS | OF_PIPELINES | {"typer"}) == {"typer"}


def test_a_worker_without_personal_fields_imports_no_database() -> None:
    found = imported("from tests.patterns.things.app import app\napp._http(app)")  # which looks for personal fields
    assert found & (OF_DATABASES | OF_HTTP | OF_WORKERS | OF_PIPELINES) == OF_HTTP | OF_WORKERS


@pytest.mark.parametrize("module", VERBS)
def test_the_table_has_the_verbs_of_each_module(module: str) -> None:
    found = get_group(import_module(module).cli)
    assert VERBS[module] == ((found.name,) if found.name else tuple(found.commands))


def test_a_verb_that_is_mistyped_is_known() -> None:
    assert "Did you mean 'status'" in CliRunner().invoke(cli, ["statsu"]).output
