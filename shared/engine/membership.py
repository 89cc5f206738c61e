"""Whether this worker is a member of its group, and what the group has given to it."""

from __future__ import annotations

from dataclasses import dataclass

from shared.engine.lease import Lease
from shared.runtime.positions import Place


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions that the group gave to this worker, and the membership that the broker checks at each commit.

    member: made of `generation` and `member_id`. lacks: what other workers of the group can handle, and this one can't.
    """

    active: frozenset[Place]
    standby: frozenset[Place]
    member: bytes
    generation: int
    member_id: str
    lacks: frozenset[str] = frozenset()


class Membership:
    def __init__(self, lease_s: float) -> None:
        self.lease = Lease(lease_s)
        self._joined: tuple[str, int] = ("", 0)  # our member id, and the last generation that we joined
        self._has_left = False

    @property
    def in_lease(self) -> bool:
        """Whether the group surely counts this worker as a member: not after the worker was frozen or suspended."""
        return not self._has_left and self.lease.holds

    def joined(self, assignment: Assignment, sent: float) -> bool:
        """The group has counted this worker as a member since `sent` (`elapsed_s`).

        Returns whether nobody else can have owned and written its partitions meanwhile: not if it missed a generation,
        or got a new member id.
        """
        member_id, generation = self._joined
        is_unbroken = assignment.member_id == member_id and assignment.generation in (generation, generation + 1)
        if self._joined != (assignment.member_id, assignment.generation):
            # and so in the group's log; what it has given before, a superseded coordinator gives from memory
            self._joined = assignment.member_id, assignment.generation
            self.lease.extend(sent)
        return is_unbroken

    def leave(self) -> None:
        """From now on, the next owner of its partitions may answer."""
        self._has_left = True
