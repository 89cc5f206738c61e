"""An image runs whoever built it, from whatever checkout."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.compose.conftest import ports
from tests.compose.project import ROOT, Project

FILE = "docker-compose.yml"


def test_a_checkout_that_only_its_owner_can_read_gives_an_image_that_runs(engine: None, tmp_path: Path) -> None:
    for name in (FILE, "Dockerfile", ".dockerignore", "deploy", "requirements", "services", "shared"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for path in tmp_path.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)  # as git leaves it under umask 077
    project = Project("onefold-private", [FILE], os.environ | ports(), tmp_path)
    project.run("build", "topics")
    assert "provision" in project.run("run", "--rm", "--no-deps", "topics", "--help")
