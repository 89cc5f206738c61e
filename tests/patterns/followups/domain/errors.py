"""Why a followup refuses a command.

DomainError
└── FollowupError
    └── UnknownFollowup   followup.unknown
"""

from shared.domain import DomainError


class FollowupError(DomainError):
    """A rule of followups."""


class UnknownFollowup(FollowupError):
    code = "followup.unknown"
