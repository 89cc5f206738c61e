"""What can go wrong, and who deals with it.

OnefoldError
├── DomainError        a rule refused a command: a recorded outcome with a stable code, never a crash
│   └── SequenceMismatch   the command was meant for the aggregate as it was at another sequence
├── BadMessage         bytes that cannot be decoded: dead letter
│   └── Unknown        what a later release may know: a version, a field, or
│       └── UnknownType    a type: a reader of another service's events may skip it
├── RowUnreadable      a row that this release can't read: its key is parked
└── NotReady           this instance cannot answer yet: try again

Anything else is a bug and crashes loudly.
"""

from typing import ClassVar

from pydantic import ValidationError

REASON_MAX_CHARS = 300
DETAIL_MAX_CHARS = 1_000


class OnefoldError(Exception):
    """Base class of every error that this template raises on purpose."""


class DomainError(OnefoldError):
    """The base class of the reasons for which `decide` refuses a command; it is answered 409.

    `code`, such as "account.closed", is part of the public contract: clients branch on it, so it never changes. The
    first 1,000 characters of the text are kept with the command's outcome, and answered as `detail`.
    """

    code: str


class SequenceMismatch(DomainError):
    code = "sequence.mismatch"


class BadMessage(OnefoldError):
    """A record that is not a valid message; `reason` never quotes its data, which may be personal.

    Operator action: read the dead letter's reason, fix the producer, and send the corrected message again.
    """

    code: ClassVar[str] = "message.bad"

    def __init__(self, reason: str) -> None:
        self.reason = reason[:REASON_MAX_CHARS]  # it may quote a field's name, which has any length
        super().__init__(self.reason)


class Unknown(BadMessage):
    """A message of which this release lacks something that a later one may have.

    Operator action: start the release that knows it, then retry the record; else as for any BadMessage.
    """

    code = "message.unknown"


class UnknownType(Unknown):
    """A message of a type that the codec does not know."""

    def __init__(self, message_type: str) -> None:
        super().__init__(f"unknown type {message_type!r}")
        self.message_type = message_type


class RowUnreadable(OnefoldError):
    """A committed row does not have the shape that its codec reads, or has a field that the codec would drop.

    Operator action: do what the message says after `fix:`, then retry what is parked.
    """

    code: ClassVar[str] = "row.unreadable"

    def __init__(self, changelog: str, partition: int, key: bytes, error: ValueError) -> None:
        super().__init__(
            f"{changelog}/{partition}: the row of {key.decode()!r} can't be read: {_problem(error)}; fix: if a "
            f"later release wrote it, start that one; else give new fields of the state a default, or raise `version` "
            f"in topology.py, then `rebuild`"
        )


class NotReady(OnefoldError):
    """This instance is restoring or rebalancing: the same request will succeed a little later."""


def _problem(error: ValueError) -> str:
    return first_problem(error) if isinstance(error, ValidationError) else str(error)


def first_problem(refusal: ValidationError, *within: str) -> str:
    """Where and what, without the value, which may be personal. within: the path to what was validated."""
    first = refusal.errors(include_url=False, include_input=False)[0]
    path = ".".join(map(str, (*within, *first["loc"])))
    return f"{path}: {first['msg']}" if path else first["msg"]
