"""The Java that runs Kafka."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST = 17

_USUAL_PLACES = (
    "/usr/lib/jvm/*/bin/java",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
    "/opt/homebrew/opt/openjdk*/bin/java",
    "/usr/local/opt/openjdk*/bin/java",
)


class JavaUnavailable(Exception):
    """No Java is new enough and none could be installed.

    Operator action: install Java 17 or newer and put it on the PATH, or set JAVA_HOME.
    """


@dataclass(frozen=True, slots=True)
class Java:
    """An executable that ran, and its feature release: 17, 21, …"""

    executable: Path
    release: int


def find_java() -> Java:
    """The first of JAVA_HOME, the PATH and the usual places that is Java 17 or newer. Raises JavaUnavailable."""
    for candidate in _candidates():
        release = _release(candidate)
        if release is not None and release >= OLDEST:
            return Java(candidate, release)
    raise JavaUnavailable("no Java 17+")


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    for pattern in _USUAL_PLACES:
        yield from sorted(Path("/").glob(pattern[1:]), reverse=True)


def _release(java: Path) -> int | None:
    """What `java -version` states; None when it does not run, as the stub of macOS."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    stated = re.search(r'version "(\d+)', answer.stderr)
    return int(stated[1]) if answer.returncode == 0 and stated else None
