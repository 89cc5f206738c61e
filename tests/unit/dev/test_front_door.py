from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import dev
import pipelines.cli
from dev import USAGE, module_and_arguments
from shared.dev import cli, here, up
from shared.dev.stages import StageFailed
from shared.dev.verbs import becoming
from shared.runtime.checkout import found_services

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("given", "run"),
    [
        (["test", "-k", "x"], ["shared.dev.checks", "test", "-k", "x"]),
        (["check"], ["shared.dev.checks", "check"]),
        (["demo", "--ci"], ["shared.dev.cli", "demo", "--ci"]),
        (["topics"], ["shared.dev.cli", "topics"]),
        (["cli", "--help"], ["shared.dev.cli", "--help"]),
    ],
)
def test_each_verb_runs_its_module(given: list[str], run: list[str]) -> None:
    assert module_and_arguments(given) == run


@pytest.mark.parametrize(
    ("given", "held", "run"),
    [
        (["cli", "parity", "--help"], ["worker", "pipelines"], ["shared.dev.cli", "parity", "--help"]),
        (["cli", "test"], ["dev", "pipelines"], ["shared.dev.checks", "test"]),
        (["cli", "--help"], ["worker"], ["shared.dev.cli", "--help"]),
        (["cli"], ["worker"], ["shared.dev.cli"]),
    ],
)
def test_cli_before_a_verb_needs_what_the_verb_needs(
    given: list[str], held: list[str], run: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def ensure(_: object, names: list[str]) -> str:
        asked.append(names)
        return "python"

    monkeypatch.setattr(dev, "ensure", ensure)
    monkeypatch.setattr(os, "execve", lambda _, command, __: asked.append(command[3:]))
    dev.main(given)
    assert asked == [held, run]


def test_what_is_printed_and_read_is_utf_8_in_every_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Mapping[str, str]] = []
    monkeypatch.setattr(dev, "ensure", lambda *_: "python")
    monkeypatch.setattr(os, "execve", lambda *arguments: given.append(arguments[2]))
    dev.main(["status"])
    assert given[0].items() >= {"PYTHONUTF8": "1", **os.environ}.items()


def test_a_reader_that_has_read_enough_gets_no_error() -> None:
    program = [sys.executable, str(ROOT / "dev.py")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stderr
        run.stdout.close()
        assert run.stderr.read() == ""


@pytest.mark.parametrize("verb", ["worker", "token", "asyncapi"])
def test_an_unknown_service_is_reported_with_the_existing_ones(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["dev.py", verb, "accout"])
    known = ", ".join(found_services())
    with pytest.raises(SystemExit, match=rf"no service is called accout\n  fix: name one of: {known}"):
        cli.main()


@pytest.mark.parametrize("verb", [["up"], ["dead-letters", "show"], ["bench"]])
def test_help_shows_what_to_type(
    verb: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dev.py", *verb, "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert f"Usage: python3 dev.py {' '.join(verb)} " in capsys.readouterr().out


@pytest.mark.parametrize("named", [["--bootstrap", "other:9092"], ["--bootstrap=other:9092"]])
def test_other_brokers_than_those_of_up_are_not_taken_for_as_many(
    named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rebuild` creates topics there, with as many copies as the settings say."""
    ran: list[list[str]] = []
    monkeypatch.setattr(here, "join_up", lambda: pytest.fail("`up` has its own brokers"))
    monkeypatch.setattr(becoming, "become", lambda _, arguments: ran.append(arguments))
    becoming._on_spark("rebuild", ["accounts", *named])
    assert ran == [["rebuild", "accounts", *named]]


def test_a_spark_verb_that_could_not_begin_exits_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 would say that it ran and found something wrong."""

    def starting(_: object) -> None:
        raise StageFailed("`up` is starting its brokers", "wait until it says so, then run again")

    def unwritable(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/work")

    monkeypatch.delenv("ONEFOLD_BOOTSTRAP", raising=False)
    monkeypatch.setattr(sys, "argv", ["dev.py", "parity"])
    monkeypatch.setattr(up, "running", starting)
    with pytest.raises(SystemExit) as refused:
        cli.main()
    assert refused.value.code == 2
    monkeypatch.setattr(pipelines.cli, "cli", unwritable)
    with pytest.raises(SystemExit) as refused:
        pipelines.cli.main()
    assert refused.value.code == 2


def test_dev_py_needs_the_standard_library_only() -> None:
    without_site_packages = [sys.executable, "-S", "-E", str(ROOT / "dev.py")]
    assert subprocess.run(without_site_packages, capture_output=True, text=True).stdout == USAGE


def test_every_alias_of_the_makefile_is_a_verb() -> None:
    aliases = re.findall(r"^\t@python3 dev\.py (\w+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(aliases) - {"help"} <= set(re.findall(r"^  (\w+) ", USAGE, re.MULTILINE))


def test_a_lock_file_names_packages_and_hashes_and_never_an_address() -> None:
    locks = sorted((ROOT / "requirements").glob("*.lock"))
    assert [lock.stem for lock in locks] == ["dev", "java", "pipelines", "worker"]
    assert not [lock.name for lock in locks if re.search(r"://|^-|@ ", lock.read_text(), re.MULTILINE)]


def test_no_package_has_two_versions_on_one_machine() -> None:
    versions: dict[tuple[str, str], set[str]] = {}
    for lock in (ROOT / "requirements").glob("*.lock"):
        for name, version, marker in re.findall(r"^([\w.-]+)==(\S+)(.*)\\$", lock.read_text(), re.MULTILINE):
            versions.setdefault((name, marker), set()).add(version)
    assert len(versions) > 60
    assert {package for package, found in versions.items() if len(found) > 1} == set()
