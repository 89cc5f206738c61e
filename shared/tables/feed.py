"""The changes of a table, as its changelog records them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

from shared.domain.row import Row


class Change(NamedTuple):
    """The new row of `key` as of this changelog record; None when it was deleted."""

    partition: int
    offset: int
    key: bytes
    row: Row[Any] | None


class Feed(NamedTuple):
    """begins: the offset behind which the feed starts, by partition. changes: oldest first per partition, endless."""

    begins: Mapping[int, int]
    changes: AsyncIterator[Sequence[Change]]
