"""Which version of a service answers, which worker of each version owns which partition, whose turn it is there, and
what operators have done with versions.

All are records of the topic `SERVICE.routes.v1`, which every worker of every version reads: turns each in the partition
that they are about, all else in partition 0.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

log = structlog.get_logger(__name__)

PARTITION = 0
ACTIVE = b"active"
TURN = b"turn"

_DEED = b"deed/"
_OWNER = re.compile(rb"owner/(\d{1,9})/(\d{1,9})")


class Active(BaseModel):
    """The version that answers. former: the one that answered before, if it can be gone back to. by, reason: who has
    switched to it, and why.
    """

    model_config = ConfigDict(frozen=True)

    version: int
    former: int | None = None
    by: str = ""
    reason: str = ""

    @property
    def record(self) -> tuple[bytes, bytes]:
        """Its key and value."""
        return ACTIVE, self.model_dump_json().encode()


class Deed(BaseModel):
    """What an operator has done with versions, such as `retire`. version: the one that it was about."""

    model_config = ConfigDict(frozen=True)

    at: datetime
    verb: str
    version: int
    by: str
    reason: str = ""

    @property
    def record(self) -> tuple[bytes, bytes]:
        """Its key, of which there is no other, and value."""
        return _DEED + self.at.isoformat().encode(), self.model_dump_json().encode()


class Turn(BaseModel):
    """Which version acts in a partition from now on: decides, sends, copies and publishes. The one before, `giver`, has
    written it in the transaction with which it stopped.

    number: counts the turns of the partition. at: the next offset of each source, as the giver has left it. begins:
    where some processors begin further on, by source and name, as it had noted.
    """

    model_config = ConfigDict(frozen=True)

    number: int
    version: int
    giver: int
    at: Mapping[str, int] = {}
    begins: Mapping[str, Mapping[str, int]] = {}


class Role(NamedTuple):
    """Of one version in a partition: whether it acts there, as of the turn of that number.

    Its group commits it as a position in that partition of the routes, so that it is as true as its other positions.
    """

    number: int = 0
    acts: bool = True

    @classmethod
    def of(cls, committed: int | None) -> Role:
        """committed: None for a group that never gave or took a turn; it acts."""
        return cls() if committed is None else cls(committed >> 1, bool(committed & 1))

    @property
    def committed(self) -> int:
        return self.number << 1 | self.acts


def owner_key(version: int, partition: int) -> bytes:
    """The key of the record whose value is the URL of the partition's owner in that version."""
    return b"owner/%d/%d" % (version, partition)


class Routes:
    """What the records read so far say. read: whether it was all once. active: None until a version was deployed beside
    another, and then each worker answers by itself. deeds: the latest last.
    """

    def __init__(self) -> None:
        self.read = False
        self.active: Active | None = None
        self.deeds: list[Deed] = []
        self._owners: dict[tuple[int, int], str] = {}
        self._turns: dict[int, Turn] = {}
        self._moved = asyncio.Event()

    def apply(self, key: bytes | None, value: bytes | None, partition: int = PARTITION) -> None:
        """The next record. One that a later release wrote, and this one can't read, is passed over."""
        if key in (ACTIVE, TURN) or (key or b"").startswith(_DEED):
            try:
                if key not in (ACTIVE, TURN):
                    self.deeds += [] if value is None else [Deed.model_validate_json(value)]
                elif key == ACTIVE:
                    self.active = None if value is None else Active.model_validate_json(value)
                elif value is not None:
                    self._turns[partition] = Turn.model_validate_json(value)
            except ValidationError as error:
                log.error("a record of routes can't be read", reason=str(error))
            self._moved.set()
            self._moved = asyncio.Event()
        elif found := _OWNER.fullmatch(key or b""):
            place = int(found[1]), int(found[2])
            if value is None:
                self._owners.pop(place, None)
            else:
                self._owners[place] = value.decode()

    def owner(self, version: int, partition: int) -> str | None:
        """URL of the worker that owns the partition in that version, by its own word; None if none has said so."""
        return self._owners.get((version, partition))

    def turn(self, partition: int) -> Turn | None:
        """The last one of the partition; None until a version that acts was deployed beside another."""
        return self._turns.get(partition)

    def has_turn(self, version: int, partition: int) -> bool:
        """Whether it is this version's turn there, by the last record."""
        turn = self._turns.get(partition)
        return turn is not None and turn.version == version

    def owners(self, version: int) -> Mapping[int, str]:
        """The same of all partitions."""
        return {partition: url for (each, partition), url in sorted(self._owners.items()) if each == version}

    @property
    def versions(self) -> set[int]:
        """Those of which an owner is known."""
        return {version for version, _ in self._owners}

    def passed_on(self, version: int) -> bool:
        """Whether a worker of that version leaves the answer to another version's."""
        return self.active is not None and self.active.version != version

    async def moved(self, version: int) -> None:
        """Returns once another version than this is active."""
        while not self.passed_on(version):
            await self._moved.wait()
