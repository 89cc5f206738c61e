"""A Java program's classes, parsed and verified: one start leaves them, and the next ones take half the time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from shared.runtime.java import Java

_QUIET = "-Xlog:cds=off,cds+dynamic=off"  # Java goes on without an archive that it can't use
_MAGIC = 4  # bytes; Java writes the head of an archive last
_ALSO_FROM = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")  # every Java that has these takes them


class SharedClasses:
    """The archive of the classes of these jars as this Java, with these options and those of the environment, has
    loaded them in a program. Java refuses one that it has left with others, such as another collector."""

    def __init__(self, folder: Path, name: str, java: Java, jars: Iterable[Path], options: Iterable[str] = ()) -> None:
        also = [flag for each in _ALSO_FROM for flag in os.environ.get(each, "").split() if flag.startswith("-X")]
        made_by = f"{java.build} {[*map(str, jars)]} {[*options, *also]}"
        self.archive = folder / f"{name}-classes-{sha256(made_by.encode()).hexdigest()[:16]}.jsa"

    def mapped(self) -> list[str]:
        """Options of a Java that uses them, if they are there."""
        return [_QUIET, f"-XX:SharedArchiveFile={self.archive}"] if self._is_whole() else []

    def mapped_or_left(self) -> list[str]:
        """Options of a Java that uses them; if they aren't there, it leaves them in the seconds before it ends."""
        return self.mapped() or [_QUIET, f"-XX:ArchiveClassesAtExit={self.archive}"]

    def _is_whole(self) -> bool:
        with suppress(OSError), self.archive.open("rb") as archive:
            return any(archive.read(_MAGIC))
        return False
