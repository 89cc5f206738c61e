"""dev.py in a checkout of its own, with one locked package that a local folder serves instead of an index."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
CLI = """
import json, sys, tiny
print(json.dumps({"prefix": sys.prefix, "arguments": sys.argv[1:], "tiny": tiny.ANSWER}))
"""

pytestmark = pytest.mark.slow


def write_wheel(folder: Path) -> str:
    """Writes a wheel of one module; returns its SHA-256."""
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    files = {
        "tiny.py": "ANSWER = 42\n",
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},{_record_hash(text)},{len(text)}\n" for name, text in files.items())
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in (files | {"tiny-1.0.dist-info/RECORD": record}).items():
            archive.writestr(name, text)
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def _record_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class FakeCheckout:
    """The files of a clone that dev.py needs, and how to run it there."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "clone"
        self.wheels = folder / "wheels"
        self.lock = self.root / "requirements" / "worker.lock"
        self.wheels.mkdir()
        self.lock.parent.mkdir(parents=True)
        shutil.copytree(ROOT / "shared" / "dev", self.root / "shared" / "dev")
        shutil.copy(ROOT / "dev.py", self.root)
        (self.root / "shared" / "__init__.py").touch()
        self.write_cli(CLI)
        self.write_lock(write_wheel(self.wheels))

    def write_cli(self, program: str) -> None:
        (self.root / "shared" / "dev" / "cli.py").write_text(program)

    def write_lock(self, sha256: str) -> None:
        self.lock.write_text(f"tiny==1.0 \\\n    --hash=sha256:{sha256}\n")

    def start(self, *arguments: str, python: Path | str = sys.executable) -> subprocess.Popen[str]:
        environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        return subprocess.Popen(
            [str(python), str(self.root / "dev.py"), *arguments],
            cwd=self.root.parent,  # not the checkout: dev.py works from anywhere
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, python: Path | str = sys.executable) -> tuple[int, str, str]:
        process = self.start(*arguments, python=python)
        said, complained = process.communicate(timeout=120)
        return process.returncode, said, complained


@pytest.fixture
def checkout(tmp_path: Path) -> FakeCheckout:
    return FakeCheckout(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> FakeCheckout:
    """One whose environment is made once, for the tests that only run something there."""
    return FakeCheckout(tmp_path_factory.mktemp("größe"))


@pytest.mark.long  # in short, the environment of this run
def test_two_concurrent_first_runs_make_one_environment_and_later_runs_install_nothing(checkout: FakeCheckout) -> None:
    runs = [checkout.start("demo", "--ci"), checkout.start("demo", "--ci")]
    ended = [(*run.communicate(timeout=120), run.returncode) for run in runs]
    expected = {"prefix": str(checkout.root / ".venv"), "arguments": ["demo", "--ci"], "tiny": 42}
    assert [(json.loads(said), code) for said, _, code in ended] == [(expected, 0)] * 2
    assert sum("1 packages of requirements/worker.lock installed" in told for _, told, _ in ended) == 1

    shutil.rmtree(checkout.wheels)
    assert checkout.run("demo", "--ci") == (0, json.dumps(expected) + "\n", "")


@pytest.mark.long  # in short, two first runs at once
def test_a_run_after_an_interrupted_first_run_works(checkout: FakeCheckout) -> None:
    run = checkout.start("demo")
    eventually((checkout.root / ".venv" / "bin").exists)
    run.send_signal(signal.SIGINT)
    _, complained = run.communicate(timeout=30)
    assert run.returncode == 130
    assert re.search(r"^\[setup\] (venv|packages) +interrupted \(", complained, re.MULTILINE), complained
    assert checkout.run("demo")[0] == 0


@pytest.mark.long  # in short, a folder with a space
def test_a_folder_whose_name_the_locale_cannot_spell_works_each_time(
    made: FakeCheckout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    asks = "import subprocess, tiny; print(subprocess.check_output(['locale', 'charmap'], text=True))"
    made.write_cli(asks)
    for _ in range(2):
        code, said, complained = made.run("demo")
        assert (code, said.strip()) == (0, "UTF-8"), complained  # what Java needs to find its files


def test_another_checkout_on_the_python_path_is_left_out(
    made: FakeCheckout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.write_cli(CLI)
    other = tmp_path / "other" / "shared" / "dev"
    other.mkdir(parents=True)
    (other / "cli.py").write_text("raise SystemExit('the other checkout')")
    for package in (other, other.parent):
        (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other"))
    code, said, complained = made.run("demo")
    assert (code, json.loads(said)["tiny"]) == (0, 42), complained


@pytest.mark.long  # the refusal is pip's, by the hash in the lock
def test_an_altered_package_is_refused_until_the_lock_is_right(checkout: FakeCheckout) -> None:
    lock = checkout.lock.read_text()
    checkout.write_lock("0" * 64)
    code, _, complained = checkout.run("demo")
    assert code == 2
    assert "not the one that was locked" in complained
    assert f"log: {checkout.root}/.onefold/logs/packages-worker.log" in complained
    assert "fix: restore requirements/" in complained
    checkout.lock.write_text(lock)
    in_use = checkout.root / ".venv" / "bin" / "python"  # removed and made again while it runs dev.py
    assert checkout.run("demo", python=in_use)[0] == 0


def test_an_environment_that_is_linked_to_is_left_alone(checkout: FakeCheckout, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (checkout.root / ".venv").symlink_to(theirs)
    code, _, complained = checkout.run("demo")
    assert (code, theirs.exists()) == (2, True)
    assert f"{checkout.root}/.venv was not made by dev.py" in complained
