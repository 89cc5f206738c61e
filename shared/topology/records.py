"""What is handled: a record of a source topic, whichever client read it."""

from __future__ import annotations

from typing import Protocol


class SourceRecord(Protocol):
    """The part of a consumed record that processors read."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int:
        """When it was appended, by its broker, in ms since the epoch."""
