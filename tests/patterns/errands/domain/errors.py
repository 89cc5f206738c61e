"""Why an errand refuses a command.

DomainError
└── ErrandError
    ├── UnknownErrand   errand.unknown
    ├── NotPending      errand.not_pending
    └── NotStuck        errand.not_stuck
"""

from shared.domain import DomainError


class ErrandError(DomainError):
    """A rule of errands."""


class UnknownErrand(ErrandError):
    code = "errand.unknown"


class NotPending(ErrandError):
    code = "errand.not_pending"


class NotStuck(ErrandError):
    code = "errand.not_stuck"
