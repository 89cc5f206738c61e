"""`effect run` as an operator calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shared.dev import effects
from shared.dev.cli import cli
from shared.effects import Effects
from shared.runtime import declared
from shared.runtime.settings import Settings
from tests.patterns.errands.effects import EFFECTS


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

    monkeypatch.setattr(effects, "declared_by", lambda *_: EFFECTS)
    monkeypatch.setattr(effects, "run", run)
    (tmp_path / "token").write_text("first\n")
    urls = ("--url", "http://one", "--url", "http://two")
    done = CliRunner().invoke(cli, ["effect", "run", "notices", *urls, "--token-file", str(tmp_path / "token")])
    assert done.exception is None
    assert told == ["/errands", "http://one", "http://two", "second"]
