"""Follows docs/tutorials/add-a-service.md to the letter: writes its files, runs its commands, checks its answers."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import pytest

from dev import module_and_arguments
from tests.scaffold.checkout import ROOT, Checkout

PAGE = (ROOT / "docs" / "tutorials" / "add-a-service.md").read_text()
BLOCK = re.compile(r"(?:^`(?P<file>[\w./]+)`\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```\n", re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:31234"
UP = "python3 dev.py up"


class Step(NamedTuple):
    """A file to write, a command to run, or the expected answer of the last command."""

    kind: Literal["file", "command", "answer"]
    name: str
    text: str


def steps() -> Iterator[Step]:
    for block in BLOCK.finditer(PAGE):
        if block["file"]:
            yield Step("file", block["file"], block["text"])
        elif block["kind"] == "sh":
            yield from (Step("command", line, "") for line in block["text"].splitlines())
        else:
            yield Step("answer", block["kind"], block["text"])


def run(checkout: Checkout, command: str, address: str) -> str:
    """Runs a command; `python3 dev.py` without its first step, making a .venv."""
    program, *arguments = shlex.split(command.replace(ADDRESS, address))
    if program == "python3":
        assert arguments.pop(0) == "dev.py"
        return checkout.run(sys.executable, "-m", *module_and_arguments(arguments))
    assert program in ("curl", "rm")
    return checkout.run(program, *arguments)


@contextmanager
def running(checkout: Checkout) -> Iterator[str]:
    """Runs `up`; yields the address of vouchers-1 that it shows."""
    command = [sys.executable, "-m", "shared.dev.cli", "up"]
    with subprocess.Popen(command, cwd=checkout.root, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout
        try:
            yield next(found[1] for line in up.stdout if (found := re.match(r"vouchers-1 +(\S+)/docs$", line)))
        finally:
            up.send_signal(signal.SIGINT)


def test_the_tutorial_runs_up_once() -> None:
    assert [step.name for step in steps() if step.kind == "command"].count(UP) == 1


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.timeout(1200)
def test_the_tutorial_can_be_followed_to_the_letter(checkout: Checkout) -> None:
    checkout.know_types()
    todo = list(steps())
    start = [step.name for step in todo].index(UP)
    follow(checkout, todo[:start], "")
    with running(checkout) as address:
        said = follow(checkout, todo[start + 1 :], address)
    assert json.loads(said)["code"] == "voucher.not_enough_left"


def follow(checkout: Checkout, todo: list[Step], address: str) -> str:
    """Carries out the steps; returns the output of the last command."""
    said = ""
    for kind, name, text in todo:
        if kind == "command":
            said = run(checkout, name, address)
        elif kind == "file":
            (checkout.root / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout.root / name).write_text(text)
        elif name == "json":
            assert json.loads(said) == json.loads(text)
        else:
            ports = re.compile(r"\d+-\d+$", re.MULTILINE)
            assert ports.sub("PORTS", said) == ports.sub("PORTS", text)
    return said
