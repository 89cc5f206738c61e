"""What a table's changelog says, one record at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

from shared.es.row import Row


class Change(NamedTuple):
    """The row of `key` from this record of the changelog on; None when it was deleted."""

    partition: int
    offset: int
    key: bytes
    row: Row[Any] | None


class Feed(NamedTuple):
    """begins: the offset behind which it begins, by partition. changes: oldest first in each partition, endless."""

    begins: Mapping[int, int]
    changes: AsyncIterator[Sequence[Change]]
