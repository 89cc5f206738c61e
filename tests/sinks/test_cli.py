"""`sink` as an operator uses it: fill, look, swap."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import create_engine, make_url, text
from typer.testing import CliRunner, Result

from shared.dev import sinks
from shared.dev.cli import cli
from shared.dev.postgres import Postgres
from shared.dev.stages import StageFailed
from shared.runtime.declared import declared
from shared.runtime.settings import Settings, SettingsError
from shared.sinks.database import Database, Origin
from shared.sinks.process import database_of, run
from tests.accounts.sinks import accounts_sink
from tests.accounts.topology import TOPOLOGY
from tests.sinks.outside import LEASE_S, Log, SinkProcess
from tests.waiting import eventually

RUN = (sys.executable, "-P", "-m", "shared.dev.cli", "sink", "run", "accounts")
Sink = Callable[..., Result]


@pytest.fixture
def sink(bootstrap: str, tmp_path: Path) -> Sink:
    url = SecretStr(f"sqlite:///{tmp_path / 'sinks.sqlite3'}")
    environment = Settings(bootstrap=bootstrap, sink_database=url, session_timeout_s=LEASE_S).environment()
    return lambda *arguments: CliRunner().invoke(cli, ["sink", *arguments], env=environment)


@pytest.mark.broker
@pytest.mark.slow
def test_a_table_is_filled_looked_at_and_shown(
    sink: Sink, log: Log, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sink("status", "accounts").output == (
        "accounts_v1  the database does not know accounts_v1; fix: start the sink, which makes it\n"
    )
    process = SinkProcess("one", tmp_path, bootstrap, f"sqlite:///{tmp_path / 'sinks.sqlite3'}", RUN)
    log.write(100)
    process.start()
    filled = eventually(lambda: sink("status", "accounts").output, lambda told: " 0 offsets behind" in told)
    assert filled.startswith("accounts_v1  0 offsets behind, filled by one@")
    assert filled.endswith(", shown\n")
    assert sink("show", "accounts", "accounts_v1").output == "accounts shows accounts_v1\n"
    agrees = sink("parity", "accounts")
    assert re.fullmatch(r"parity accounts_v1 (\d+) of \1 rows are what it makes of accounts-.*\n", agrees.output)
    process.kill()
    engine = create_engine(f"sqlite:///{tmp_path / 'sinks.sqlite3'}")
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO accounts_v1 VALUES ('nobody', 'open', 0, 0, 1)"))
    engine.dispose()
    differs = sink("parity", "accounts", "accounts_v1")
    assert differs.exit_code == 1
    assert re.fullmatch(r"parity accounts_v1 DIFFERS: .* of accounts-\S+; not nobody \(.*\)\n", differs.output)
    log.write(100)
    monkeypatch.setattr(sinks, "CATCH_UP_S", 0.0)
    behind = sink("show", "accounts", "accounts_v1").exception
    assert isinstance(behind, StageFailed)
    assert "offsets behind" in str(behind)
    events = [json.loads(line)["event"] for line in process.said().splitlines() if line.startswith("{")]
    assert "a sink is filled" in events


@pytest.mark.parametrize(("user", "reason"), [("nobody", 'role "nobody" does not exist'), ("", "Connection refused")])
def test_a_database_that_refuses_the_login_or_is_away_is_told_in_the_status(
    user: str, reason: str, postgres: Postgres
) -> None:
    there = make_url(postgres.url)
    url = there.set(username=user) if user else there.set(host="127.0.0.1", port=1)
    password = "a-secret"
    given = url.set(password=password).render_as_string(hide_password=False)
    environment = Settings(bootstrap="127.0.0.1:1", sink_database=SecretStr(given)).environment()
    answer = CliRunner().invoke(cli, ["sink", "status", "accounts"], env=environment).output
    assert answer.startswith("accounts_v1  the database gives no answer: ")
    assert reason in answer
    assert password not in answer


def test_a_sink_that_waits_says_why_in_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'sinks.sqlite3'}"
    (waiting,) = declared("services.accounts", "sinks", "SINKS")
    with closing(Database(url)) as database:
        database.prepare(waiting, Origin("a-topic", "an-id", {0: 0}))
        database.tell(waiting, "DiskFull: no space")
    monkeypatch.setattr(sinks, "Brokers", lambda _: Busy(lambda end: None))
    environment = Settings(bootstrap="127.0.0.1:1", sink_database=SecretStr(url)).environment()
    answer = CliRunner().invoke(cli, ["sink", "status", "accounts"], env=environment).output
    assert answer == "accounts_v1  10 offsets behind, filled by nobody, shown; waits: DiskFull: no space\n"


class Busy:
    """Brokers of a topic whose end is further each time it is asked for; then the sink writes up to where it was."""

    def __init__(self, write: Callable[[int], None]) -> None:
        self._write = write
        self._asked = 0
        self.writing = threading.Thread()

    def settled_ends(self, topic: str) -> Mapping[int, int]:
        self._asked += 1
        self.writing = threading.Thread(target=self._write, args=[10 * self._asked])
        self.writing.start()
        return {0: 10 * self._asked}

    def topic_ids(self, topics: Collection[str]) -> set[str]:
        return {"an-id"}


@pytest.mark.parametrize(
    ("topic_id", "told"),
    [("an-id", "accounts shows accounts_v1\n"), ("another", "with the id another, which is no more")],
)
def test_a_table_of_a_busy_topic_is_shown_once_it_has_what_was_there(
    topic_id: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'sinks.sqlite3'}"
    topology = declared("services.accounts", "topology", "TOPOLOGY")
    (filled,) = declared("services.accounts", "sinks", "SINKS")
    with closing(Database(url)) as database:
        database.prepare(filled, Origin(filled.source.topic_in(topology), topic_id, {0: 0}))
        claim = database.claim(filled, database.lease(filled), "one")
        assert claim is not None
        busy = Busy(lambda end: database.write(filled, claim.epoch, claim.positions, {0: end}, {}))
        monkeypatch.setattr(sinks, "Brokers", lambda _: busy)
        environment = Settings(bootstrap="127.0.0.1:1", sink_database=SecretStr(url)).environment()
        answer = CliRunner().invoke(cli, ["sink", "show", "accounts", "accounts_v1"], env=environment)
        busy.writing.join()
    assert told in f"{answer.output}{answer.exception}"


@pytest.mark.parametrize(
    "url", ["not a url", "mysql://user:secret@host/name", "postgresql+pg8000://user:secret@host/name"]
)
def test_a_database_that_cannot_be_used_is_told_without_its_password(url: str) -> None:
    environment = Settings(sink_database=SecretStr(url), bootstrap="127.0.0.1:1").environment()
    refused = CliRunner().invoke(cli, ["sink", "run", "accounts"], env=environment).exception
    assert isinstance(refused, SettingsError)
    assert str(refused).startswith("ONEFOLD_SINK_DATABASE cannot be used (")
    assert "secret" not in str(refused)


def test_production_without_a_database_is_told() -> None:
    with pytest.raises(SettingsError, match="ONEFOLD_SINK_DATABASE is not set, and there are sinks; fix:"):
        database_of(Settings().model_copy(update={"env": "prod"}))


def test_a_table_is_filled_by_one_sink_alone() -> None:
    with pytest.raises(ValueError, match=r"more than one sink fills \['accounts_v1'\]; fix:"):
        run(TOPOLOGY, [accounts_sink(), accounts_sink()], Settings())


def test_a_service_without_sinks_is_told() -> None:
    refused = CliRunner().invoke(cli, ["sink", "run", "nothing"]).exception
    assert str(refused).startswith("nothing has no sinks; fix: name one of: ")
