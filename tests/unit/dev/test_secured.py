"""What the containers of compose.secure.yml are given is made once, and reached by its owner only."""

from __future__ import annotations

from pathlib import Path

from shared.dev.secured import make_secrets


def test_what_is_there_stays_and_a_new_service_gets_a_password_of_its_own(tmp_path: Path) -> None:
    made = {file: file.read_text() for file in make_secrets(tmp_path, ["accounts", "orders"])}
    wallets = tmp_path / "passwords" / "wallets"
    assert make_secrets(tmp_path, ["accounts", "orders", "wallets"]) == [wallets]
    assert {file: file.read_text() for file in made} == made
    assert len({*made.values(), wallets.read_text()}) == len(made) + 1


def test_nobody_else_comes_into_the_folder(tmp_path: Path) -> None:
    (file, *_) = make_secrets(tmp_path / "secrets", ["accounts"])
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o644
