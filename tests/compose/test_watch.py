"""Under `docker compose watch`, an edited service answers with the edit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.compose.conftest import FIRST_PORT, Projects
from tests.compose.project import ROOT, Project, eventually, get

NAME = f"onefold-test-watch-{os.getpid()}"  # Compose leaves a lock with the watch's process id, which is reused
URL = f"http://127.0.0.1:{FIRST_PORT}"
NOT_CODE = shutil.ignore_patterns(".venv", ".git", ".onefold", ".*_cache", "__pycache__", "docs", "tests")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("watched") / "checkout", ignore=NOT_CODE))


@pytest.fixture(scope="module")
def system(project: Projects, checkout: Path) -> Project:
    made = project(NAME, "docker-compose.yml", "compose.dev.yml", checkout=checkout, ACCOUNTS_PORTS=str(FIRST_PORT))
    made.up("accounts")
    return made


def test_an_edited_service_answers_with_the_edit(system: Project, checkout: Path) -> None:
    api = checkout / "services" / "accounts" / "api.py"
    before = get(f"{URL}/openapi.json")["paths"]
    with system.watched("accounts"):
        api.write_text(api.read_text().replace('"payments"', '"instalments"'))
        paths = eventually(lambda: get(f"{URL}/openapi.json")["paths"], lambda now: now != before)
    assert before.keys() - paths.keys() == {"/accounts/{account_id}/payments"}
    assert paths.keys() - before.keys() == {"/accounts/{account_id}/instalments"}
