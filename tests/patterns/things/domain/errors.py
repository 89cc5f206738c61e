"""Why a thing refuses a command.

DomainError
└── ThingError
    ├── UnknownThing     thing.unknown
    ├── AlreadyCreated   thing.already_created
    ├── AlreadyClosed    thing.closed
    └── NoTitle          thing.no_title
"""

from shared.domain import DomainError


class ThingError(DomainError):
    """A rule of things."""


class UnknownThing(ThingError):
    code = "thing.unknown"


class AlreadyCreated(ThingError):
    code = "thing.already_created"


class AlreadyClosed(ThingError):
    code = "thing.closed"


class NoTitle(ThingError):
    code = "thing.no_title"
