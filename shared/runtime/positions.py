"""Positions as text: `topic/partition@offset`, the last record included; several are separated by commas.

An offset of -1 includes no record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from shared.domain.row import Outcome

Partition = tuple[str, int]
"""A topic's name and a partition number."""

_ONE = r"([a-zA-Z0-9._-]{1,249})/([0-9]{1,6})@(-1|[0-9]{1,18})"
_POSITION = re.compile(_ONE)

POSITIONS = rf"^{_ONE}(,{_ONE})*$"
"""The pattern of what `parse_positions` reads."""


class Committed(NamedTuple):
    """A command's outcome, and the last offset that its transaction read or wrote in each partition."""

    outcome: Outcome
    positions: Mapping[Partition, int]


def format_positions(positions: Mapping[Partition, int]) -> str:
    return ",".join(f"{topic}/{partition}@{offset}" for (topic, partition), offset in sorted(positions.items()))


def parse_positions(text: str) -> dict[Partition, int]:
    """What `format_positions` wrote; of several positions joined, the latest in each partition. Raises ValueError."""
    positions: dict[Partition, int] = {}
    for part in text.split(","):
        found = _POSITION.fullmatch(part)
        if found is None:
            raise ValueError(f"not a position, topic/partition@offset: {text[:200]!r}")
        partition, offset = (found[1], int(found[2])), int(found[3])
        positions[partition] = max(offset, positions.get(partition, -1))
    return positions
