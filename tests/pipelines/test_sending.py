"""Rows of a file are decided by the running service, once, and what it refuses is shown with the reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from pipelines.backfill import RowMapping, Rule
from pipelines.cli import cli
from pipelines.sending import NotDecided, command
from services.accounts.domain.decide import DECIDER
from shared.dev.stack import Stack
from tests.pipelines.conftest import FIRST_DAY, read_records

MAPPING = """
key = "customer"
id = "line"
order = ["CAST(line AS INT)"]

[[commands]]
type = "account.open"
where = "opened IS NOT NULL"
at = "opened"

[[commands]]
type = "account.charge"
at = "charged"
data.amount_cents = "CAST(cents AS BIGINT)"
"""

NIGHT = """line,customer,opened,charged,cents
1,sent-ann,1997-01-01,1997-01-02,500
2,sent-ann,,1997-01-03,70
3,sent-bob,,1997-01-03,70
4,sent-ann,,1997-01-04,n/a
"""

NEXT_NIGHT = """line,customer,opened,charged,cents
2,sent-ann,,1997-01-03,70
3,sent-bob,,1997-01-03,71
5,sent-ann,,1997-01-04,9
"""


@pytest.mark.long  # in short, its ids and its mapping, below
def test_each_row_is_decided_once_while_workers_run(
    stack: Stack, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mapping.toml").write_text(MAPPING)
    rejects = tmp_path / "rejects"

    def send(rows: str, *options: str) -> tuple[int, list[str]]:
        (tmp_path / "rows.csv").write_text(rows)
        given = ["backfill", "accounts", str(tmp_path / "mapping.toml"), str(tmp_path / "rows.csv"), *options]
        run = CliRunner().invoke(cli, [*given, "--rejects", str(rejects), "--bootstrap", stack.bootstrap])
        assert run.exception is None or isinstance(run.exception, SystemExit), run.exception
        return run.exit_code, [line for line in run.output.splitlines() if not line.startswith("backfill:")]

    code, trial = send(NIGHT, "--dry-run")
    assert "4 commands would be written to accounts.commands.v1, 0 are there" in trial, trial
    refused = "account.unknown: Charge refused: the account was never opened"
    wrong = (
        "`data.amount_cents` of account.charge cannot be computed: "
        "a number does not fit, or a text or a local time is no such value"
    )
    rounded = "1 rows wrong: `id` is a number that a spreadsheet has rounded"
    _, told = send("line,customer,opened,charged,cents\n1.2E+9,sent-ann,1997-01-01,,\n", "--dry-run")
    assert any(line.startswith(rounded) for line in told), told
    code, told = send(NIGHT)
    assert (code, told[0]) == (1, "3 commands accepted by accounts, 0 were decided before"), told
    shown = CliRunner().invoke(cli, ["rejects", str(rejects)]).output.splitlines()
    assert f"1 rows: {refused}" in shown, shown
    assert f"1 rows: {wrong}" in shown
    assert shown[-1] == "2 rows rejected"
    found = httpx.get(f"{stack.urls('accounts')[0]}/accounts/sent-ann", timeout=60).json()
    assert (found["balance_cents"], found["sequence"]) == (570, 3)

    code, told = send(NEXT_NIGHT)
    assert (code, told[0]) == (1, "1 commands accepted by accounts, 1 were decided before"), told
    assert any("row.changed: a row with this `id` was sent before with other values" in line for line in told), told
    events = [json.loads(each.value or b"") for each in read_records(stack.bootstrap, "accounts.events.v1")]
    times = [each["occurred_at"] for each in events if each["aggregate_id"] == "sent-ann"]
    assert times == [f"1997-01-0{day}T00:00:00Z" for day in (1, 2, 3, 4)]

    monkeypatch.setattr("shared.kafka.brokers.Brokers.members", lambda *_: ())
    (tmp_path / "rows.csv").write_text(NEXT_NIGHT)
    given = ["backfill", "accounts", str(tmp_path / "mapping.toml"), str(tmp_path / "rows.csv")]
    run = CliRunner().invoke(cli, [*given, "--rejects", str(rejects), "--bootstrap", stack.bootstrap])
    assert isinstance(run.exception, NotDecided)


def made(*, row: str = "1", of: int = 0, at: datetime | None = FIRST_DAY, data: str = '{"amount_cents":1}') -> Any:
    latest = FIRST_DAY + timedelta(days=1)
    return command(DECIDER.command_codec, "ann", row, latest, at, "account.charge", 1, data, of)


def test_the_id_of_a_command_follows_from_the_row_and_the_rule() -> None:
    assert made() == made()
    ids = [made()[0], made(row="2")[0], made(of=1)[0]]
    assert len(set(ids)) == 3
    assert made(data='{"amount_cents":2}')[0] == made()[0]
    assert made(data='{"amount_cents":2}')[2] != made()[2]


def test_a_row_that_has_not_happened_yet_is_rejected() -> None:
    with pytest.raises(ValueError, match="`at` is in the future"):
        made(at=datetime(2097, 1, 1, tzinfo=UTC))
    with pytest.raises(ValueError, match="`at` is not a timestamp"):
        made(at=None)
    with pytest.raises(ValueError, match=r"data\.amount_cents"):
        made(data="{}")


def test_a_mapping_says_what_rows_become_and_when() -> None:
    rule, given = (Rule(type="account.open"),), {"key": "who", "order": ()}
    assert RowMapping(**given, at="day", id="line", commands=rule).rules == rule
    for wrong, why in (
        ({"at": "day"}, "either events or commands"),
        ({"at": "day", "events": rule, "commands": rule}, "either events or commands"),
        ({"at": "day", "commands": rule}, "need an `id`"),
        ({"at": "day", "id": "line", "events": rule}, "known by their number"),
        ({"id": "line", "commands": rule}, "account.open has no `at`"),
    ):
        with pytest.raises(ValidationError, match=why):
            RowMapping(**given, **wrong)
