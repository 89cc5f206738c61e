"""What we are compared with and do not depend on: built when first measured, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from shared.runtime.jars import user_cache

SIDES = Path(__file__).with_name("sides")
_DONE = "built"


class PeerMissing(Exception):
    """This peer can't be built here; the message says why. The others are measured without it."""


def quix() -> list[str]:
    """The command of the Quix Streams side."""
    return [str(_built(SIDES / "quix", _install) / "bin" / "python"), str(SIDES / "quix" / "side.py")]


def kafka_streams() -> list[str]:
    """The command of the Kafka Streams side. Needs a JDK and Maven."""
    built = _built(SIDES / "kafka_streams", _compile)
    classpath = f"{built / 'target' / 'classes'}:{(built / 'classpath').read_text()}"
    return ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath, "Sales"]


def eventsourced() -> list[str]:
    """The command of FastAPI with `eventsourcing`."""
    return [str(_built(SIDES / "eventsourced", _install) / "bin" / "python"), str(SIDES / "eventsourced" / "side.py")]


def emmett() -> list[str]:
    """The command of Express with emmett. Needs Node and npm."""
    return ["node", str(_built(SIDES / "emmett", _add) / "side.js")]


def _built(source: Path, build: Callable[[Path, Path], None]) -> Path:
    """The cached folder for what `source` says now. Raises PeerMissing."""
    files = sorted(file for file in source.iterdir() if file.is_file())
    digest = hashlib.sha256(b"\0".join([sys.version.encode(), *(file.read_bytes() for file in files)])).hexdigest()
    folder = user_cache() / "bench" / f"{source.name}-{digest[:12]}"
    if not (folder / _DONE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        build(source, folder)
        (folder / _DONE).touch()
    return folder


def _install(source: Path, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "-r", str(source / "requirements.txt")])


def _compile(source: Path, folder: Path) -> None:
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            raise PeerMissing(f"there is no `{tool}` on the PATH")
    shutil.copytree(source, folder, dirs_exist_ok=True)
    goals = ["compile", "dependency:build-classpath", "-Dmdep.outputFile=classpath"]
    _run(["mvn", "-B", "-q", "-f", str(folder / "pom.xml"), *goals])


def _add(source: Path, folder: Path) -> None:
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise PeerMissing(f"there is no `{tool}` on the PATH")
    shutil.copytree(source, folder, dirs_exist_ok=True)
    _run(["npm", "install", "--prefix", str(folder), "--no-fund"])


def _run(command: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise PeerMissing(f"`{command[0]}` failed: {output[-1] if output else done.returncode}")
