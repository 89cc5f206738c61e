"""What can go wrong, and whose business it is.

OnefoldError
├── DomainError        a rule refused a command: a recorded outcome with a stable code, never a crash
├── BadMessage         bytes that cannot be understood: dead letter
│   └── UnknownType    of a type the codec was not given: a reader of foreign events may skip it
└── NotReady           this instance cannot answer yet: try again

Anything else is a bug and crashes loudly.
"""

from typing import ClassVar

REASON_MAX_CHARS = 300


class OnefoldError(Exception):
    """Root of every error this template raises on purpose."""


class DomainError(OnefoldError):
    """A command refused by the domain. `code` is part of the public contract: clients branch on it."""

    code: ClassVar[str]


class BadMessage(OnefoldError):
    """A record that is not the message it should be; `reason` never quotes the data, which may be personal.

    Operator action: read the dead letter's reason, fix its producer, and send the corrected message again.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason[:REASON_MAX_CHARS]  # a field's name can be as long as its sender likes
        super().__init__(self.reason)


class UnknownType(BadMessage):
    """A message of a type the codec was not given."""

    def __init__(self, message_type: str) -> None:
        super().__init__(f"unknown type {message_type!r}")
        self.message_type = message_type


class NotReady(OnefoldError):
    """This instance is restoring or rebalancing: the same request succeeds a little later."""
