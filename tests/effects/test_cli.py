"""`effect run` as an operator calls it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shared.dev import effects
from shared.dev.cli import cli
from shared.effects import Effects
from shared.runtime import declared
from shared.runtime.checkout import CHECKOUT
from shared.runtime.child import Child
from shared.runtime.settings import Settings
from tests.patterns.errands.effects import EFFECTS
from tests.waiting import eventually

WITHOUT_TARGET = """
from shared.effects import Effects
from shared.effects.runner import run
from shared.runtime.settings import load_settings

run(Effects("/errands", list), ["http://127.0.0.1:9"], None, load_settings())
"""


def test_a_service_without_effects_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "found_services", lambda having: ["notices"])
    refused = CliRunner().invoke(cli, ["effect", "run", "accounts"]).exception
    assert str(refused) == "accounts has no effects; fix: name one of: notices"


def test_the_runner_is_told_its_workers_and_reads_its_token_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []

    def run(found: Effects, urls: Sequence[str], token: Callable[[], str], settings: Settings) -> None:
        (tmp_path / "token").write_text("second\n")
        told.extend([found.path, *urls, token()])
        (tmp_path / "token").unlink()  # by what replaces it
        told.append(token())

    monkeypatch.setattr(effects, "declared_by", lambda *_: EFFECTS)
    monkeypatch.setattr(effects, "run", run)
    (tmp_path / "token").write_text("first\n")
    urls = ("--url", "http://one", "--url", "http://two")
    done = CliRunner().invoke(cli, ["effect", "run", "notices", *urls, "--token-file", str(tmp_path / "token")])
    assert done.exception is None
    assert told == ["/errands", "http://one", "http://two", "second", "none"]


def test_a_runner_without_a_target_says_so_and_waits(tmp_path: Path) -> None:
    log, own = tmp_path / "log", {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    runner = Child([sys.executable, "-P", "-c", WITHOUT_TARGET], log, CHECKOUT, own)
    try:
        eventually(lambda: "no target is set" in log.read_text())
        runner.terminate()
        runner.wait(60)
        assert "the runner stops" in log.read_text()
    finally:
        runner.kill()
