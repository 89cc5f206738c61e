"""A broker's classes, parsed and verified: one broker leaves them, and the next ones start in half the time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from shared.runtime.jars import user_cache
from shared.runtime.java import Java

_QUIET = "-Xlog:cds=off,cds+dynamic=off"  # Java goes on without an archive that it can't use


class SharedClasses:
    """The archive, in the user's cache, of the classes of these jars as this Java has loaded them."""

    def __init__(self, java: Java, jars: Iterable[Path]) -> None:
        program = java.executable.resolve()
        made_by = f"{program} {program.stat().st_mtime_ns} {[*map(str, jars)]}"
        self.archive = user_cache() / f"kafka-classes-{sha256(made_by.encode()).hexdigest()[:16]}.jsa"
        self._new = self.archive.with_suffix(f".{os.getpid()}-{id(self)}")

    def mapped(self) -> list[str]:
        """Options of a Java that uses them, if they are there."""
        return [_QUIET, f"-XX:SharedArchiveFile={self.archive}"] if self.archive.exists() else []

    def mapped_or_left(self) -> list[str]:
        """Options of a Java that uses them; if they aren't there, it leaves them in the four seconds before it ends."""
        return self.mapped() or [_QUIET, f"-XX:ArchiveClassesAtExit={self._new}"]

    def keep(self, whole: bool) -> None:
        """Called when the Java that was to leave them has ended. whole: not by SIGKILL."""
        if whole and self._new.exists():
            self._new.replace(self.archive)
        self._new.unlink(missing_ok=True)
