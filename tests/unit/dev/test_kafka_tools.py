"""`kafka` runs Kafka's own tools; what they do on a broker is tested with the doctor's cures."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from shared.dev import cli
from shared.dev.stages import StageFailed
from shared.kafka import access
from shared.operations import tools
from shared.runtime.java import Java
from shared.runtime.settings import Principal


def test_a_tool_signs_in_with_a_password_that_java_reads_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[list[str], str]] = []

    def run(command: list[str]) -> SimpleNamespace:
        config = Path(command[command.index("--command-config") + 1])
        ran.append((command, config.read_text()))
        return SimpleNamespace(returncode=3)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(tools, "find_java", lambda: Java(Path("java"), 21))
    monkeypatch.setattr(tools, "fetch_jars", lambda _: [Path("a.jar")])
    monkeypatch.setattr(access, "_principal", lambda: Principal("ops", r"a\"bß", Path("/ca.pem")))
    environment = {"ONEFOLD_BOOTSTRAP": "127.0.0.1:1"}
    done = CliRunner().invoke(cli.cli, ["kafka", "topics", "--list"], env=environment)
    ((command, config),) = ran
    assert done.exit_code == 3
    assert command[-5:-3] == ["--bootstrap-server", "127.0.0.1:1"]
    assert command[-1] == "--list"
    assert r'password="a\\\\\\"b\u00df";' in config


def test_an_unknown_tool_is_reported_with_the_existing_ones() -> None:
    error = CliRunner().invoke(cli.cli, ["kafka", "topic"], env={"ONEFOLD_BOOTSTRAP": "127.0.0.1:1"}).exception
    assert isinstance(error, StageFailed)
    assert "name one of: configs" in error.fix


def test_a_table_of_a_tool_is_read_by_its_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "find_java", lambda: Java(Path("java"), 21))
    monkeypatch.setattr(tools, "fetch_jars", lambda _: [])
    done = SimpleNamespace(returncode=0, stdout="Id   \tState  \nsome id\tOngoing\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert tools.tool_table("transactions", ["list"], "127.0.0.1:1") == [{"Id": "some id", "State": "Ongoing"}]
    done.returncode = 1
    with pytest.raises(tools.ToolFailed, match=r"^kafka transactions list: "):
        tools.tool_table("transactions", ["list"], "127.0.0.1:1")
