"""Which commands a nickname accepts, and which events follow. Its id is the text that only one claimant may have."""

from typing import assert_never, get_args
from unicodedata import normalize

from shared.domain import Decider
from tests.patterns.nicknames.domain.commands import (
    ClaimNickname,
    ExpireNickname,
    NicknameCommand,
    ReleaseNickname,
    UseNickname,
)
from tests.patterns.nicknames.domain.errors import NicknameTaken, NotCanonical, NotClaimed
from tests.patterns.nicknames.domain.events import (
    NicknameClaimed,
    NicknameEvent,
    NicknameExpired,
    NicknameReleased,
    NicknameUsed,
)
from tests.patterns.nicknames.domain.state import INITIAL, Claimed, Free, Nickname, Used, evolve


def canonical(text: str) -> str:
    """The one spelling of all that counts as the same text."""
    return normalize("NFKC", normalize("NFKC", text).casefold()).strip()


def check_id(nickname_id: str, command: NicknameCommand) -> None:
    """Raises NotCanonical. What was claimed by an earlier rule can still be used, released and expire."""
    if isinstance(command, ClaimNickname) and nickname_id != canonical(nickname_id):
        raise NotCanonical(f"{nickname_id!r} refused: write it as {canonical(nickname_id)!r}")


def decide(command: NicknameCommand, nickname: Nickname) -> list[NicknameEvent]:
    """The events that follow from `command`; none if it was already so. Raises NicknameError."""
    claimant = command.claimant
    holder = None if isinstance(nickname, Free) else nickname.claimant
    if isinstance(command, ExpireNickname):
        return [NicknameExpired(claimant=claimant)] if nickname == Claimed(claimant=claimant) else []
    if holder not in (None, claimant):
        raise NicknameTaken(f"{type(command).__name__} refused: another claimant has the nickname")
    match command:
        case ClaimNickname():
            return [] if holder else [NicknameClaimed(claimant=claimant)]
        case UseNickname():
            if holder is None:
                raise NotClaimed("UseNickname refused: there is no claim, or its time is over")
            return [] if isinstance(nickname, Used) else [NicknameUsed(claimant=claimant)]
        case ReleaseNickname():
            return [NicknameReleased(claimant=claimant)] if holder else []
        case _:
            assert_never(command)


DECIDER: Decider[NicknameCommand, NicknameEvent, Nickname] = Decider(
    decide=decide,
    evolve=evolve,
    initial=INITIAL,
    commands=get_args(NicknameCommand),
    events=get_args(NicknameEvent),
    state=Nickname,
    check_id=check_id,
)
