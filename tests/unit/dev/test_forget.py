"""`forget`, without a broker: it needs the database of the keys alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shared.dev import here
from shared.dev import up as local_stack
from shared.dev.cli import cli
from shared.dev.processes import identify
from shared.dev.stages import StageFailed
from shared.dev.up import Record
from shared.privacy.persons import Forgotten, PersonKeys
from shared.runtime.settings import Settings, SettingsError
from tests.patterns.things.service import SERVICE as THINGS
from tests.unit.http.test_protection import PROD

pytestmark = pytest.mark.usefixtures("known")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"ONEFOLD_BOOTSTRAP": "127.0.0.1:1", "ONEFOLD_PERSON_KEYS": f"sqlite:///{tmp_path / 'keys.sqlite3'}"}


def test_it_says_whether_there_was_a_key_and_where_it_looked(environment: dict[str, str]) -> None:
    PersonKeys(environment["ONEFOLD_PERSON_KEYS"]).of_or_new("accounts:ann")
    told = [CliRunner().invoke(cli, ["forget", "accounts", each], env=environment) for each in ("ann", "ann", "bob")]
    assert [run.exit_code for run in told] == [0, 1, 1]
    assert told[0].output == "accounts:ann is forgotten; in 5 s at most, no worker shows anything personal of them\n"
    nowhere = f"had no key in {environment['ONEFOLD_PERSON_KEYS']}, and will never have one; check that it is"
    for run, person in zip(told[1:], ("accounts:ann", "accounts:bob"), strict=True):
        assert run.output == f"{person} {nowhere} the workers' database\n"
    with pytest.raises(Forgotten):
        PersonKeys(environment["ONEFOLD_PERSON_KEYS"]).of_or_new("accounts:bob")


def test_a_service_without_personal_fields_has_no_persons_but_those_of_earlier_releases(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    PersonKeys(environment["ONEFOLD_PERSON_KEYS"]).of_or_new("accounts:ann")
    monkeypatch.setattr(here, "declared", lambda *_: THINGS)
    run = CliRunner().invoke(cli, ["forget", "accounts", "bob"], env=environment)
    assert isinstance(run.exception, StageFailed)
    assert run.exception.problem == "accounts has no personal fields, and accounts:bob no key"
    assert CliRunner().invoke(cli, ["forget", "accounts", "ann"], env=environment).exit_code == 0
    assert PersonKeys(environment["ONEFOLD_PERSON_KEYS"]).of(["accounts:bob"]) == {}


def test_in_production_the_database_must_be_named() -> None:
    environment = {**PROD.environment(), "ONEFOLD_PERSON_KEYS": ""}
    run = CliRunner().invoke(cli, ["forget", "accounts", "ann"], env=environment)
    assert isinstance(run.exception, SettingsError)
    assert "ONEFOLD_PERSON_KEYS is not set" in str(run.exception)


def test_the_keys_are_those_of_a_running_up(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PersonKeys(environment["ONEFOLD_PERSON_KEYS"]).of_or_new("accounts:ann")
    settings = {**Settings(data_dir=tmp_path / "other").environment(), **environment}
    up = Record(identify(os.getpid()), (), settings, {})
    monkeypatch.setattr(local_stack, "running", lambda _: up)
    for name in settings:  # so that what the verb sets is undone after the test
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    run = CliRunner().invoke(cli, ["forget", "accounts", "ann"])
    assert (run.exit_code, run.output.split(";")[0]) == (0, "accounts:ann is forgotten")


def test_a_service_that_is_none_is_named(environment: dict[str, str]) -> None:
    run = CliRunner().invoke(cli, ["forget", "acounts", "ann"], env=environment)
    assert run.exit_code != 0
    assert "acounts" in f"{run.output}{run.exception}"


def test_the_password_of_the_database_is_not_shown() -> None:
    for url in ("postgresql+psycopg://me:secret@db/keys", "postgresql+psycopg://me:secret@db/keys?password=secret"):
        assert PersonKeys(url).database == "postgresql+psycopg://me:***@db/keys"
