"""Follows docs/outside.md to the letter: writes its files, runs its commands, and is called as its partner."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Thread

import pytest

from tests.effects.partner import Partner
from tests.scaffold.checkout import ROOT, Checkout
from tests.scaffold.pages import program_of, steps
from tests.waiting import eventually

PAGE = (ROOT / "docs" / "outside.md").read_text()
ADDRESS, PARTNER = "http://127.0.0.1:31234", "https://partner.example.com/hook"
STAYS = "until Ctrl-C"


@pytest.fixture
def partner() -> Iterator[Partner]:
    with Partner() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@contextmanager
def beside(checkout: Checkout, command: str) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "PYTHONPATH": str(checkout.root)}
    with subprocess.Popen(
        program_of(command), cwd=checkout.root, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)


def pattern(said: str) -> str:
    """Of what a comment says that a command prints: numbers, and what has dots for more, may be others."""
    parts = re.split(r"(\S*…\S*|\d[\d,.]*)", said)
    return "".join(re.escape(part) if number % 2 == 0 else r"\S+" for number, part in enumerate(parts))


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.long  # in short, tests/sinks and tests/effects
@pytest.mark.timeout(600)
def test_the_page_can_be_followed_to_the_letter(
    checkout: Checkout, partner: Partner, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []
    for kind, name, text in steps(PAGE):
        if kind == "file":
            (checkout.root / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout.root / name).write_text(text)
        elif name.startswith("export "):
            for each in shlex.split(name)[1:]:
                monkeypatch.setenv(*each.replace(PARTNER, partner.url).split("=", 1))
        elif name.startswith(("python3 dev.py new-service", "touch")):
            checkout.run(*program_of(name))
        elif kind == "command":
            commands.append(name)
    checkout.lint("services")
    checkout.pytest("tests/unit/test_redeclared.py", "tests/unit/notices")
    with ExitStack() as running:
        up = running.enter_context(beside(checkout, "python3 dev.py up accounts notices"))
        assert up.stdout is not None
        address = next(found[1] for line in up.stdout if (found := re.match(r"accounts-1 +(\S+)/docs$", line)))
        for line in commands:
            command, _, said = line.replace(ADDRESS, address).partition("  # ")
            if STAYS in said:
                running.enter_context(beside(checkout, command))
            elif said:
                eventually(partial(checkout.run, *program_of(command)), re.compile(pattern(said.strip())).search)
            else:
                checkout.run(*program_of(command))
        eventually(lambda: partner.calls)
    assert partner.calls == [("ann-closed", '{"type": "account.closed", "data": {"account_id": "ann"}}')]
