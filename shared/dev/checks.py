"""`dev.py check`, `test` and `verify`: formatting, lint, types, doors and more, then pytest."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from shared.dev.locks import OWN
from shared.dev.stages import StageFailed, stage
from shared.runtime.checkout import CHECKOUT

_BIN = Path(sys.executable).parent
_AT_ONCE = ("-n", "4")


@dataclass(frozen=True, slots=True)
class Check:
    """One check. fix: what to run when it fails."""

    name: str
    command: tuple[str, ...]
    fix: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found. says: its last line, or all of it if it failed. fix: empty if it passed."""

    name: str
    ok: bool
    says: str
    fix: str = ""


def _has_doors() -> bool:
    try:
        return "importlinter" in tomllib.loads((CHECKOUT / OWN).read_text()).get("tool", {})
    except (OSError, ValueError):
        return False  # the locks' check says so


_YOURS = Check("your doors", ("lint-imports", "--no-logo", f"--config={OWN}"), f"see its contracts, in {OWN}")
_STATIC = (
    Check("format", ("ruff", "format", "--check", "."), ".venv/bin/ruff format"),
    Check("lint", ("ruff", "check", "--output-format=concise", "."), ".venv/bin/ruff check --fix"),
    Check("types", ("mypy",), "correct the lines above, then .venv/bin/mypy"),
    Check(
        "doors",
        ("lint-imports", "--no-logo"),
        "move the import to a room that has that door (pyproject.toml)",
    ),
    *([_YOURS] if _has_doors() else []),
    Check("locks", ("python", "-P", "-m", "shared.dev.locked"), "python3 dev.py lock"),
    Check("whose", ("python", "-P", "-m", "shared.dev.whose"), "see docs/upgrading.md"),
    Check(
        "schemas",
        ("python", "-P", "-m", "shared.dev.cli", "schemas"),
        "release it as said above, and `python3 dev.py check --accept`, for review",
    ),
)
_ACCEPT, _JSON, _TESTS = "--accept", "--json", "--tests"


def pytest_arguments(verb: str, arguments: Sequence[str]) -> list[str]:
    """pytest's arguments. `check` runs the tests that take milliseconds; `test --long` also those that take minutes.

    `test --compose` runs only those that need a Docker engine. A full run is three tests at once: see tests/conftest.
    """
    if verb == "check":
        return ["-q", "-m", "not broker and not slow and not long and not compose", *arguments]
    rest = [argument for argument in arguments if argument not in ("--long", "--compose")]
    if "--compose" in arguments:
        return ["-m", "compose", *rest]
    chosen = ["-m", "not compose"] if "--long" in arguments else []
    return [*chosen, *(rest or _AT_ONCE)]


def main(verb: str, *arguments: str) -> None:
    """Runs the static checks, then becomes pytest, or says what `verify` found. Exits with 1 when a check fails."""
    os.chdir(CHECKOUT)
    if verb == "verify":
        _verify(arguments)
    total = len(_STATIC) + 1
    if _ACCEPT in arguments:
        arguments = tuple(each for each in arguments if each != _ACCEPT)
        _accept()
    failures = [check for number, check in enumerate(_STATIC, 1) if not _passes(check, f"[{number}/{total}]")]
    if failures:
        alone = shlex.join(("python", "-m", "pytest", *pytest_arguments(verb, arguments)))
        sys.stdout.write(
            f"[{total}/{total}] tests      not run: correct the above, or run them alone: .venv/bin/{alone}\n"
        )
        sys.exit(1)
    sys.stdout.write(f"[{total}/{total}] tests\n")
    sys.stdout.flush()
    command = [sys.executable, "-m", "pytest", *pytest_arguments(verb, arguments)]
    os.execv(command[0], command)


def _verify(arguments: Sequence[str]) -> NoReturn:
    """Runs all checks, whatever fails, and with `--tests` the tests of `check`; says the verdict, and exits.

    With 2 if it is asked for what it would not do: a program that misspells `--json` reads no text as its verdict.
    """
    unknown = [each for each in arguments if each == _ACCEPT or (_TESTS not in arguments and each != _JSON)]
    if unknown:
        sys.stderr.write(
            f"verify does not know {' '.join(unknown)}; fix: give --json, or --tests and what is pytest's\n"
        )
        sys.exit(2)
    checks = [*_STATIC, *([_tests(arguments)] if _TESTS in arguments else [])]
    found = [_verdict(check) for check in checks]
    ok = all(each.ok for each in found)
    if _JSON in arguments:
        print(json.dumps({"ok": ok, "checks": [asdict(each) for each in found]}, indent=2, ensure_ascii=False))
    else:
        print("".join(f"{_shown(each)}\n" for each in found), end="")
    sys.exit(0 if ok else 1)


def _tests(arguments: Sequence[str]) -> Check:
    of_pytest = [each for each in arguments if each not in (_JSON, _TESTS)]
    command = ("python", "-m", "pytest", *pytest_arguments("check", ["--tb=short", *of_pytest]))
    return Check("tests", command, "correct what failed; `python3 dev.py test PATH` runs one file")


def _verdict(check: Check) -> Verdict:
    try:
        return Verdict(check.name, True, _run(check))
    except StageFailed as failure:
        return Verdict(check.name, False, failure.problem, failure.fix)


def _shown(verdict: Verdict) -> str:
    if verdict.ok:
        return f"ok      {verdict.name}: {verdict.says}"
    return f"failed  {verdict.name}: {verdict.says}\n  fix: {verdict.fix}"


def _accept() -> None:
    """Writes schemas and golden records. Exits when that is refused."""
    accepted = subprocess.run([_BIN / "python", "-P", "-m", "shared.dev.cli", "schemas", _ACCEPT])
    if accepted.returncode != 0:
        sys.exit(accepted.returncode)


def _passes(check: Check, mark: str) -> bool:
    try:
        with stage(mark, check.name, sys.stdout) as now:
            now.done = _run(check)
    except StageFailed as failure:
        sys.stdout.write(f"{failure.problem}\n  fix: {failure.fix}\n")
        return False
    return True


def _run(check: Check) -> str:
    """The last line of the tool's output. Raises StageFailed with all of it."""
    tool, *options = check.command
    run = subprocess.run([_BIN / tool, *options], capture_output=True, text=True)
    output = (run.stdout + run.stderr).strip()
    if run.returncode != 0:
        raise StageFailed(output, check.fix)
    return output.splitlines()[-1] if output else "done"


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BrokenPipeError:
        os._exit(128 + signal.SIGPIPE)  # `| head` has read enough
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
