"""The workers that dev.py of a checkout starts share a secret that nobody else knows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dev
from shared.dev.peer_secret import with_peer_secret
from shared.runtime.settings import DEV_PEER_SECRET, load_settings

FILE = "ONEFOLD_PEER_SECRET_FILE"


def test_a_checkout_keeps_one_secret_that_only_its_user_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = with_peer_secret({}, tmp_path)[FILE]
    monkeypatch.setenv(FILE, file)
    made = load_settings().peer_secret
    assert made.get_secret_value() != DEV_PEER_SECRET
    assert Path(file).stat().st_mode & 0o777 == 0o600
    assert with_peer_secret({}, tmp_path)[FILE] == file
    assert load_settings().peer_secret == made


def test_concurrent_starts_get_the_same_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as each of them finds it
    with ThreadPoolExecutor(8) as starts:
        found = list(starts.map(lambda _: Path(with_peer_secret({}, tmp_path)[FILE]).read_text(), range(32)))
    assert len(set(found)) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["peer-secret"]


@pytest.mark.parametrize("variable", ["ONEFOLD_PEER_SECRET", "ONEFOLD_PEER_SECRET_FILE", "onefold_peer_secret"])
def test_a_secret_of_the_users_own_is_kept(variable: str, tmp_path: Path) -> None:
    assert with_peer_secret({variable: "own"}, tmp_path) == {variable: "own"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("verb", "told"), [("up", True), ("worker", True), ("check", False)])
def test_what_starts_workers_is_told_the_secret(verb: str, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say what they need."""
    given: list[Mapping[str, str]] = []
    for variable in ("ONEFOLD_PEER_SECRET", FILE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(dev, "ensure", lambda *_: "python")
    monkeypatch.setattr(os, "execve", lambda *arguments: given.append(arguments[2]))
    dev.main([verb])
    assert (FILE in given[0]) is told
