"""The HTTP API of nicknames: takes commands, shows who has them. Its callers are trusted with the ids of claimants."""

from typing import Literal

from pydantic import BaseModel

from shared.domain import Row
from shared.service import Resource
from tests.patterns.nicknames.domain.commands import ClaimNickname, ReleaseNickname, UseNickname
from tests.patterns.nicknames.domain.decide import DECIDER
from tests.patterns.nicknames.domain.state import Free, Nickname
from tests.patterns.nicknames.topology import NICKNAMES


class NicknameView(BaseModel):
    """sequence: number of events so far."""

    nickname_id: str
    phase: Literal["claimed", "used"]
    claimant: str
    sequence: int


def nickname_view(nickname_id: str, row: Row[Nickname]) -> NicknameView | None:
    """None for a nickname that is free."""
    if isinstance(row.state, Free):
        return None
    return NicknameView(
        nickname_id=nickname_id, phase=row.state.phase, claimant=row.state.claimant, sequence=row.sequence
    )


routes = Resource(
    "/nicknames/{nickname_id}",
    NICKNAMES,
    nickname_view,
    filters=("phase", "claimant"),
    decider=DECIDER,
    commands={"": ClaimNickname, "use": UseNickname, "release": ReleaseNickname},
)
