"""What became of each command, kept by time: a table of its own beside the aggregates' rows. Pure.

A command is known for `kept_ms` after the record that was decided, however many others come between. Time is that of
the brokers, as it is on the records, so every replay counts the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder, Encoder

from shared.domain.envelope import CommandEnvelope
from shared.domain.row import Outcome

_SEPARATOR = "\0"  # aggregate ids have no control characters


class Decided(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A row of this table, in memory and as JSON: built for each command, so in one piece.

    sequence: the aggregate's after the command. at: when the record that was decided was appended, by its broker, in ms
    since the epoch. offset: of that record.
    """

    sequence: int
    fingerprint: str
    at: int
    offset: int
    code: str | None = None
    detail: str | None = None


class _Read(Decided, frozen=True, gc=False, forbid_unknown_fields=False):
    """One that may be of a later release. Written again, it would lose a field."""


Get = Callable[[bytes], Decided | None]
"""A look-up in the table, by key."""


def key_of(aggregate_id: str, command_id: str) -> bytes:
    return f"{aggregate_id}{_SEPARATOR}{command_id}".encode()


def aggregate_of(key: bytes) -> bytes:
    """The aggregate id in a key of this table."""
    return key.partition(_SEPARATOR.encode())[0]


def row_of(outcome: Outcome, at: int, offset: int) -> Decided:
    """The row that keeps the outcome. at, offset: of the record that was decided."""
    return Decided(outcome.sequence, outcome.fingerprint, at, offset, outcome.code, outcome.detail)


def recalled(get: Get, aggregate_id: str, command_id: str) -> Outcome | None:
    """What became of the command, as long as the table has it."""
    row = get(key_of(aggregate_id, command_id))
    return None if row is None else _outcome(command_id, row)


def known(get: Get, command: CommandEnvelope[Any], at: int, kept_ms: int) -> Outcome | None:
    """The outcome of an earlier record of the same command, if it is no older than `kept_ms`. at: of this record."""
    row = get(key_of(command.aggregate_id, command.command_id))
    return None if row is None or at - row.at > kept_ms else _outcome(command.command_id, row)


def _outcome(command_id: str, row: Decided) -> Outcome:
    return Outcome(command_id, row.sequence, row.code, row.detail, row.fingerprint)


class OutcomeCodec:
    """Reads and writes {"sequence", "fingerprint", "at", "offset"}, with "code" and "detail" if there are any.

    Rows that are read raise ValueError if they can't be: what msgspec raises is one.
    """

    state_type: Any = Decided

    def __init__(self) -> None:
        self.encode = Encoder().encode
        self.decode = Decoder(_Read).decode
        self.decode_whole = Decoder(Decided).decode

    def encode_checked(self, rows: Sequence[Decided]) -> list[bytes]:
        return list(map(self.encode, rows))


OUTCOME_CODEC = OutcomeCodec()
