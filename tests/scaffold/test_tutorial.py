"""Follows docs/tutorials/add-a-service.md to the letter: writes its files, runs its commands, checks its answers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.scaffold.checkout import ROOT, Checkout
from tests.scaffold.pages import Step, program_of, steps

PAGE = (ROOT / "docs" / "tutorials" / "add-a-service.md").read_text()
ADDRESS = "http://127.0.0.1:31234"
UP = "python3 dev.py up"


def run(checkout: Checkout, command: str, address: str) -> str:
    return checkout.run(*program_of(command.replace(ADDRESS, address)))


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
    assert [step.name for step in steps(PAGE) if step.kind == "command"].count(UP) == 1


@pytest.mark.long  # in short, its commands, in test_new_service
@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.timeout(1200)
def test_the_tutorial_can_be_followed_to_the_letter(checkout: Checkout) -> None:
    checkout.know_types()
    todo = list(steps(PAGE))
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
