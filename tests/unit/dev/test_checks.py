from __future__ import annotations

import os
import runpy
import subprocess
import sys

import pytest

from shared.dev import checks
from shared.dev.checks import pytest_arguments
from shared.runtime.checkout import CHECKOUT


@pytest.mark.parametrize(
    ("verb", "given", "told"),
    [
        ("test", [], ["-n", "2"]),
        ("test", ["-k", "decide"], ["-k", "decide"]),
        ("test", ["--long"], ["-m", "not compose", "-n", "2"]),
        ("test", ["--long", "tests/engine"], ["-m", "not compose", "tests/engine"]),
        ("test", ["--compose", "-x"], ["-m", "compose", "-x"]),
        ("check", [], ["-q", "-m", "not broker and not slow and not long and not compose"]),
    ],
)
def test_what_pytest_is_told(verb: str, given: list[str], told: list[str]) -> None:
    assert pytest_arguments(verb, given) == told


class Ran(Exception):
    """It would have become pytest."""


def test_what_is_accepted_is_written_before_it_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[object], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append([str(part) for part in command[1:]])
        return subprocess.CompletedProcess(commands[-1], 0, "", "")

    def become(_: str, command: list[str]) -> None:
        raise Ran(*command[1:])

    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(os, "execv", become)
    with pytest.raises(Ran) as tests:
        checks.main("check", "--accept", "tests/unit")
    assert commands[0][-2:] == ["schemas", "--accept"]
    assert commands[-1][-1] == "schemas"
    assert tests.value.args == ("-m", "pytest", *pytest_arguments("check", ["tests/unit"]))


def test_interrupted_checks_end_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setattr(subprocess, "run", interrupted)
    monkeypatch.setattr(sys, "argv", ["checks", "check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(checks.__file__, run_name="__main__")
    assert ended.value.code == 130


def test_checks_whose_reader_has_read_enough_end_without_a_traceback() -> None:
    program = [sys.executable, "-m", "shared.dev.checks", "check"]
    with subprocess.Popen(program, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stderr
        run.stdout.close()
        assert run.stderr.read() == ""
