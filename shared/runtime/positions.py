"""Positions as text: `topic/partition@offset`, the last record included; several are separated by commas.

An offset of -1 includes no record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from shared.domain.row import Outcome

_ONE = r"([a-zA-Z0-9._-]{1,249})/([0-9]{1,6})@(-1|[0-9]{1,18})"
_POSITION = re.compile(_ONE)

POSITIONS = rf"^{_ONE}(,{_ONE})*$"
"""The pattern of what `parse_positions` reads."""


class Place(NamedTuple):
    """A partition of a topic: what positions are of. Printed as `topic/number`."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class Committed(NamedTuple):
    """A command's outcome, and the last offset that its transaction read or wrote in each partition."""

    outcome: Outcome
    positions: Mapping[Place, int]


def format_positions(positions: Mapping[Place, int]) -> str:
    return ",".join(f"{place}@{offset}" for place, offset in sorted(positions.items()))


def parse_positions(text: str) -> dict[Place, int]:
    """What `format_positions` wrote; of several positions joined, the latest in each partition. Raises ValueError."""
    positions: dict[Place, int] = {}
    for part in text.split(","):
        found = _POSITION.fullmatch(part)
        if found is None:
            raise ValueError(f"not a position, topic/partition@offset: {text[:200]!r}")
        place, offset = Place(found[1], int(found[2])), int(found[3])
        positions[place] = max(offset, positions.get(place, -1))
    return positions
