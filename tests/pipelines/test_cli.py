"""What the verbs say, without Spark."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from pipelines import cli, consistency, joined
from pipelines.catalog import AnyTable


def agreed(_spark: object, _brokers: object, table: AnyTable, *_: object, **__: object) -> consistency.Verdict:
    return consistency.Verdict(table.table.name, agree=1, differ=0, asked={}, parked=0)


def test_parity_of_everything_names_tables_with_their_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two services may have a table of the same name."""
    monkeypatch.setattr(cli, "_spark", lambda *_: nullcontext())
    monkeypatch.setattr(cli, "_brokers", lambda *_: None)
    monkeypatch.setattr(consistency, "Comparison", agreed)
    monkeypatch.setattr(consistency, "verdicts", iter)
    monkeypatch.setattr(joined, "check", agreed)
    every = [f"1 of 1 {each.topology.service}/{each.table.name}" for each in cli._chosen(None, None)]
    assert CliRunner().invoke(cli.cli, ["parity"]).output.splitlines()[-1].endswith(f": {', '.join(every)}")
    assert "1 of 1 accounts agree" in CliRunner().invoke(cli.cli, ["parity", "accounts"]).output
