"""A nickname is free, claimed or used. What is free has no row."""

from typing import Annotated, Literal, assert_never

from pydantic import Field

from shared.domain import State
from tests.patterns.nicknames.domain.events import (
    NicknameClaimed,
    NicknameEvent,
    NicknameExpired,
    NicknameReleased,
    NicknameUsed,
)


class Free(State):
    phase: Literal["free"] = "free"


class Claimed(State):
    phase: Literal["claimed"] = "claimed"
    claimant: str


class Used(State):
    phase: Literal["used"] = "used"
    claimant: str


Nickname = Annotated[Free | Claimed | Used, Field(discriminator="phase")]

INITIAL: Nickname = Free()


def evolve(_nickname: Nickname, event: NicknameEvent) -> Nickname:
    """The nickname after `event`."""
    match event:
        case NicknameClaimed(claimant=claimant):
            return Claimed(claimant=claimant)
        case NicknameUsed(claimant=claimant):
            return Used(claimant=claimant)
        case NicknameReleased() | NicknameExpired():
            return INITIAL
        case _:
            assert_never(event)
