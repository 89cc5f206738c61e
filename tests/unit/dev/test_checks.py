from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from shared.dev import checks
from shared.dev.checks import pytest_arguments
from shared.dev.locked import unlocked
from shared.dev.locks import OWN
from shared.runtime.checkout import CHECKOUT


@pytest.mark.parametrize(
    ("verb", "given", "told"),
    [
        ("test", [], ["-n", "4"]),
        ("test", ["-k", "decide"], ["-k", "decide"]),
        ("test", ["--long"], ["-m", "not compose", "-n", "4"]),
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


def run_with(monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, tuple[int, str]], *arguments: str) -> object:
    """The exit code of `verify`, with tools that answer so; the others have nothing to say.

    answers: by a part of the command, its exit code and what it prints.
    """

    def run(command: list[object], **_: object) -> subprocess.CompletedProcess[str]:
        line = " ".join(map(str, command))
        code, said = next((answer for part, answer in answers.items() if part in line), (0, ""))
        return subprocess.CompletedProcess(line, code, said, "")

    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(SystemExit) as ended:
        checks.main("verify", *arguments)
    return ended.value.code


def test_one_verdict_says_of_every_check_what_failed_and_the_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {"/ruff format": (1, "Would reformat: a.py\n1 file would be reformatted\n"), "/mypy": (0, "Success\n")}
    assert run_with(monkeypatch, answers, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    by_name = {each["name"]: each for each in found["checks"]}
    assert found["ok"] is False
    assert [*by_name] == ["format", "lint", "types", "doors", "locks", "whose", "schemas"]
    assert by_name["format"] == {
        "name": "format",
        "ok": False,
        "says": "Would reformat: a.py\n1 file would be reformatted",
        "fix": ".venv/bin/ruff format",
    }
    assert by_name["types"] == {"name": "types", "ok": True, "says": "Success", "fix": ""}


def test_the_verdict_includes_the_tests_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(monkeypatch, {"pytest": (1, "FAILED tests/unit/test_x.py::test_y")}, "--tests", "tests/unit") == 1
    assert "failed  tests: FAILED tests/unit/test_x.py::test_y\n  fix: " in capsys.readouterr().out
    assert run_with(monkeypatch, {"pytest": (1, "FAILED")}) == 0
    assert run_with(monkeypatch, {"pytest": (0, "9 passed")}, "--tests") == 0


@pytest.mark.parametrize("arguments", [["--jsn"], ["tests/unit"], ["--json", "--accept", "--tests"]])
def test_verify_refuses_what_it_would_not_do(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(monkeypatch, {}, *arguments) == 2
    told = capsys.readouterr()
    assert (told.out, "fix: " in told.err) == ("", True)


def own(root: Path, **packages: str) -> None:
    """What a team asks for itself, in its own file."""
    (root / "services").mkdir()
    groups = {"worker": "", "pipelines": "", "dev": ""} | packages
    lines = [f'{name} = ["{each}"]' if each else f"{name} = []" for name, each in groups.items()]
    (root / OWN).write_text("\n".join(["[dependency-groups]", *lines]))


def test_the_locks_hold_what_pyproject_toml_asks_for() -> None:
    assert unlocked(CHECKOUT) == []


@pytest.mark.parametrize(
    "asked",
    [
        "\"tomli>=2; python_version < '3.11'\"",
        '"ours @ https://packages.example/ours-1.whl"',
        '{include-group = "more"}',
    ],
)
def test_what_is_not_for_here_by_a_url_or_of_a_group_is_locked(asked: str, tmp_path: Path) -> None:
    shutil.copytree(CHECKOUT / "requirements", tmp_path / "requirements")
    own(tmp_path)
    with (tmp_path / "requirements" / "dev.lock").open("a") as lock:
        lock.write("ours @ https://packages.example/ours-1.whl \\\n    --hash=sha256:0\n")
    project = (CHECKOUT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(project.replace("dev = [", f"more = []\ndev = [{asked}, "))
    assert unlocked(tmp_path) == []


def test_a_package_that_was_changed_and_not_locked_is_told(tmp_path: Path) -> None:
    shutil.copytree(CHECKOUT / "requirements", tmp_path / "requirements")
    project = (CHECKOUT / "pyproject.toml").read_text()
    project = project.replace('"httpx>=0.28"', '"httpx>=99"').replace("dev = [", 'dev = ["never-locked", ')
    (tmp_path / "pyproject.toml").write_text(project)
    own(tmp_path, pipelines="our-models>=3")
    told = unlocked(tmp_path)
    assert [line.partition(" ")[0] for line in told] == ["worker.lock", "dev.lock", "dev.lock", "pipelines.lock"]
    assert "pyproject.toml wants httpx>=99" in told[0]
    assert told[2] == "dev.lock has never-locked not at all, and pyproject.toml wants never-locked"
    assert "our-models not at all" in told[3]
