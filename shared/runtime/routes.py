"""Which version of a service answers, and which worker of each version owns which partition.

Both are records of the topic `SERVICE.routes.v1`, all in its partition 0, which every worker of every version reads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

log = structlog.get_logger(__name__)

PARTITION = 0
ACTIVE = b"active"

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


def owner_key(version: int, partition: int) -> bytes:
    """The key of the record whose value is the URL of the partition's owner in that version."""
    return b"owner/%d/%d" % (version, partition)


class Routes:
    """What the records read so far say. read: whether it was all once. active: None until a version was deployed beside
    another, and then each worker answers by itself.
    """

    def __init__(self) -> None:
        self.read = False
        self.active: Active | None = None
        self._owners: dict[tuple[int, int], str] = {}
        self._moved = asyncio.Event()

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """The next record. One that a later release wrote, and this one can't read, is passed over."""
        if key == ACTIVE:
            try:
                self.active = None if value is None else Active.model_validate_json(value)
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
