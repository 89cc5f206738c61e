"""What became of each command, kept by time: a table of its own beside the aggregates' rows. Pure.

A command is known for `kept_ms` after the record that was decided, however many others come between. Time is that of
the brokers, as it is on the records, so every replay counts the same.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import MsgspecError, Struct
from msgspec.json import Decoder, Encoder

from shared.es.envelope import CommandEnvelope
from shared.es.ids import CALLERS
from shared.es.row import Outcome, Row
from shared.es.step import fingerprint

_SEPARATOR = "\0"  # aggregate ids have no control characters


class Decided(Struct, frozen=True, gc=False):
    """The state in a row of this table, whose sequence is the aggregate's after the command.

    at: when the record that was decided was appended, by its broker, in ms since the epoch.
    bare: it may be of a caller's command under the bare key that an earlier release took for the id.
    """

    fingerprint: str
    code: str | None
    detail: str | None
    at: int
    bare: bool = False


Get = Callable[[bytes], Row[Decided] | None]
"""A look-up in the table, by key."""


def key_of(aggregate_id: str, command_id: str) -> bytes:
    return f"{aggregate_id}{_SEPARATOR}{command_id}".encode()


def row_of(outcome: Outcome, at: int, offset: int, *, bare: bool = False) -> Row[Decided]:
    """The row that keeps the outcome. at, offset: of the record that was decided."""
    decided = Decided(outcome.fingerprint, outcome.code, outcome.detail, at, bare)
    return Row(outcome.sequence, decided, {}, offset)


def recalled(get: Get, aggregate_id: str, command_id: str) -> Outcome | None:
    """What became of the command, as long as the table has it."""
    row = get(key_of(aggregate_id, command_id))
    return None if row is None else _outcome(command_id, row)


def known(get: Get, command: CommandEnvelope[Any], at: int, kept_ms: int) -> Outcome | None:
    """The outcome of an earlier record of the same command, if it is no older than `kept_ms`. at: of this record."""
    aggregate_id, command_id = command.aggregate_id, command.command_id
    row = get(key_of(aggregate_id, command_id))
    if row is None:
        # an earlier release took a caller's bare key for the id
        row = get(key_of(aggregate_id, command.correlation_id)) if command_id.startswith(CALLERS) else None
        if row is None or not row.state.bare:
            return None
    if at - row.state.at > kept_ms:
        return None
    outcome = _outcome(command_id, row)
    # and let callers use up the ids of policies' commands, which can be worked out
    is_taken = row.state.bare and command.causation_id is not None and not outcome.is_of(fingerprint(command.data))
    return None if is_taken else outcome


def moved(row: Row[Any], aggregate_id: str, at: int, offset: int) -> Iterator[tuple[bytes, Row[Decided]]]:
    """What an aggregate's row of an earlier release says of decided commands, as rows of this table by key.

    at, offset: of the record that writes the aggregate's row now.
    """
    if row.outcomes or row.reactions:
        for outcome, by_policy in row.decided:
            bare = not by_policy and not outcome.command_id.startswith(CALLERS)
            yield key_of(aggregate_id, outcome.command_id), row_of(outcome, at, offset, bare=bare)


def _outcome(command_id: str, row: Row[Decided]) -> Outcome:
    decided = row.state
    return Outcome(command_id, row.sequence, decided.code, decided.detail, decided.fingerprint)


class _Json(Struct, frozen=True, gc=False, omit_defaults=True):
    sequence: int
    fingerprint: str
    at: int
    offset: int
    code: str | None = None
    detail: str | None = None
    bare: bool = False


class _Whole(_Json, frozen=True, gc=False, forbid_unknown_fields=True):
    """Of a later release's row, it would lose a field."""


class OutcomeCodec:
    """Reads and writes {"sequence", "fingerprint", "at", "offset"}, with "code", "detail" and "bare" if there are any.

    Rows that are read raise ValueError if they can't be.
    """

    state_type: Any = Decided

    def __init__(self) -> None:
        self._encode = Encoder().encode
        self._decode = Decoder(_Json).decode
        self._decode_whole = Decoder(_Whole).decode

    def encode(self, row: Row[Decided]) -> bytes:
        decided = row.state
        json = _Json(
            row.sequence, decided.fingerprint, decided.at, row.offset, decided.code, decided.detail, decided.bare
        )
        return self._encode(json)

    def encode_checked(self, rows: Sequence[Row[Decided]]) -> list[bytes]:
        return [self.encode(row) for row in rows]

    def decode(self, raw: bytes) -> Row[Decided]:
        return self._row(self._decode, raw)

    def decode_whole(self, raw: bytes) -> Row[Decided]:
        return self._row(self._decode_whole, raw)

    @staticmethod
    def _row(decode: Callable[[bytes], _Json], raw: bytes) -> Row[Decided]:
        try:
            json = decode(raw)
        except MsgspecError as error:
            raise ValueError(str(error)) from None
        decided = Decided(json.fingerprint, json.code, json.detail, json.at, json.bare)
        return Row(json.sequence, decided, {}, json.offset)


OUTCOME_CODEC = OutcomeCodec()
