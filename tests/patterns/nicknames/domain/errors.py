"""Why a nickname refuses a command.

DomainError
└── NicknameError
    ├── NicknameTaken   nickname.taken
    ├── NotClaimed      nickname.not_claimed
    └── NotCanonical    nickname.not_canonical
"""

from shared.domain import DomainError


class NicknameError(DomainError):
    """A rule of nicknames."""


class NicknameTaken(NicknameError):
    code = "nickname.taken"


class NotClaimed(NicknameError):
    code = "nickname.not_claimed"


class NotCanonical(NicknameError):
    code = "nickname.not_canonical"
