"""`forget`, without a broker: it needs the database of the keys alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from shared.dev.cli import cli
from shared.persons import PersonKeys


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"ONEFOLD_BOOTSTRAP": "127.0.0.1:1", "ONEFOLD_PERSON_KEYS": f"sqlite:///{tmp_path / 'keys.sqlite3'}"}


def test_it_says_whether_there_was_a_key_and_where_it_looked(environment: dict[str, str]) -> None:
    PersonKeys(environment["ONEFOLD_PERSON_KEYS"]).of_or_new("accounts:ann")
    told = [CliRunner().invoke(cli, ["forget", "accounts", each], env=environment) for each in ("ann", "ann", "bob")]
    assert [run.exit_code for run in told] == [0, 0, 0]
    assert told[0].output == "accounts:ann is forgotten; in 5 s at most, no worker shows anything personal of them\n"
    nowhere = f"has no key in {environment['ONEFOLD_PERSON_KEYS']}, and will never have one"
    assert [run.output.rstrip() for run in told[1:]] == [f"accounts:ann {nowhere}", f"accounts:bob {nowhere}"]


def test_a_service_that_is_none_is_named(environment: dict[str, str]) -> None:
    run = CliRunner().invoke(cli, ["forget", "acounts", "ann"], env=environment)
    assert run.exit_code != 0
    assert "acounts" in f"{run.output}{run.exception}"


def test_the_password_of_the_database_is_not_shown() -> None:
    assert PersonKeys("postgresql+psycopg://me:secret@db/keys").database == "postgresql+psycopg://me:***@db/keys"
