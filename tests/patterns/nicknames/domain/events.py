"""The events of a nickname."""

from shared.domain import Event


class NicknameClaimed(Event):
    """It is kept for the claimant for a while."""

    TYPE = "nickname.claimed"

    claimant: str


class NicknameUsed(Event):
    """The claimant has it until it is released."""

    TYPE = "nickname.used"

    claimant: str


class NicknameReleased(Event):
    TYPE = "nickname.released"

    claimant: str


class NicknameExpired(Event):
    """It was not used in time."""

    TYPE = "nickname.expired"

    claimant: str


NicknameEvent = NicknameClaimed | NicknameUsed | NicknameReleased | NicknameExpired
