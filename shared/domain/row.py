"""What the table keeps of one aggregate, as JSON that people, Spark and the engine can read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NotRequired, Protocol, TypeVar

from msgspec import Struct
from msgspec.json import Encoder
from pydantic import TypeAdapter
from pydantic_core import to_json
from typing_extensions import TypedDict

S = TypeVar("S")
R = TypeVar("R")

FAILURES_KEPT = 32
"""A command that failed can be retried until as many others of its aggregate have failed after it."""

FAILED = "command.failed"
TOO_LARGE = "record.too_large"
FAILURES = frozenset({FAILED, TOO_LARGE})
"""Codes of the engine's own: the command had no effect, and an operator can have it handled again."""

UNKNOWN_BODY = ""
"""The fingerprint of a command that is known only from its events."""


class Outcome(Struct, frozen=True, gc=False):
    """What became of a command: accepted when `code` is None. `sequence` is the aggregate's after the command."""

    command_id: str
    sequence: int
    code: str | None
    detail: str | None
    fingerprint: str

    @property
    def failed(self) -> bool:
        """Whether nothing decided the command: it could not be handled, and may be yet."""
        return self.code is not None and self.code in FAILURES

    def is_of(self, digest: str) -> bool:
        """Whether this is the outcome of a command with that fingerprint; true also when its own is unknown."""
        return self.fingerprint in (digest, UNKNOWN_BODY)


Recorded = tuple[int, str, str, str | None]
"""(sequence, fingerprint, code, detail) of a command that failed."""


# A struct: as immutable as a frozen dataclass or a named tuple, and built in a fraction of their time.
class Row(Struct, Generic[S], frozen=True, gc=False):
    """What a table keeps of one key: of an aggregate, or of a view.

    sequence   how many events the state includes: of an aggregate, the number of its latest event, counted from 1.
    state      the state after them.
    outcomes   the outcomes of the latest 32 commands that failed, by command id, oldest first: an operator may retry
               them after days. Those of all others are in a table of their own; see shared.domain.outcomes.
    offset     the offset of the record that last wrote the row, in its source partition; -1 before the first.
    made_of    of a joined row, by table: [sequence, offset] of each row that it was made of; else empty.
    """

    sequence: int
    state: S
    outcomes: dict[str, Recorded]
    offset: int
    made_of: dict[str, list[int]] = {}

    def outcome(self, command_id: str) -> Outcome | None:
        """That of the command, if it has failed and is among the latest."""
        recorded = self.outcomes.get(command_id)
        return None if recorded is None else _outcome(command_id, recorded)

    def after(self, outcome: Outcome, state: S, offset: int) -> "Row[S]":
        """The row after a command. It keeps the outcome if that has failed, and then drops the oldest of too many."""
        kept = self.outcomes
        if outcome.failed:
            others = [(id_, recorded) for id_, recorded in kept.items() if id_ != outcome.command_id]
            kept = dict([*others, (outcome.command_id, _recorded(outcome))][-FAILURES_KEPT:])
        return Row(outcome.sequence, state, kept, offset)

    def without(self, command_id: str) -> "Row[S]":
        """The row as if the command had never come."""
        outcomes = {id_: recorded for id_, recorded in self.outcomes.items() if id_ != command_id}
        return Row(self.sequence, self.state, outcomes, self.offset)


def _outcome(command_id: str, recorded: Recorded) -> Outcome:
    sequence, fingerprint, code, detail = recorded
    return Outcome(command_id, sequence, code, detail, fingerprint)


def _recorded(outcome: Outcome) -> Recorded:
    assert outcome.code is not None
    return outcome.sequence, outcome.fingerprint, outcome.code, outcome.detail


_as_json = Encoder().encode  # as pydantic writes them, in less than half the time


def _written(row: Row[Any], state: bytes) -> bytes:
    """state: the row's, as JSON."""
    joined = b',"made_of":' + _as_json(row.made_of) if row.made_of else b""
    fields = row.sequence, state, _as_json(row.outcomes), joined, row.offset
    return b'{"sequence":%d,"state":%b,"outcomes":%b%b,"offset":%d}' % fields


class Codec(Protocol[R]):
    """Reads and writes rows of type R. All but `encode_checked` raise ValueError for what they can't read."""

    @property
    def state_type(self) -> Any: ...
    def encode_checked(self, rows: Sequence[R]) -> list[bytes]: ...
    def decode(self, raw: bytes) -> R: ...
    def decode_whole(self, raw: bytes) -> R: ...


class RowCodec(Generic[S]):
    """Reads and writes rows whose state is of `state_type`, a type or a union of phases."""

    def __init__(self, state_type: Any) -> None:
        self.state_type = state_type
        fields = {
            "sequence": int,
            "state": state_type,
            "outcomes": dict[str, Recorded],
            "made_of": NotRequired[dict[str, list[int]]],
            "offset": int,
        }
        self._validate = json_reader(fields)
        self._validate_states = TypeAdapter(list[state_type]).validator.validate_json

    def encode(self, row: Row[S]) -> bytes:
        """{"sequence", "state", "outcomes", "offset"}: equal rows give equal bytes."""
        return _written(row, to_json(row.state))

    def encode_checked(self, rows: Sequence[Row[S]]) -> list[bytes]:
        """The same, of each. Raises ValueError for a state that could not be read again, as with an infinite float.

        One call checks all states, in a quarter of the time of one each. In the list they are as deep as in a row.
        """
        states = [to_json(row.state) for row in rows]
        self._validate_states(b"[%b]" % b",".join(states), extra="forbid")
        return [_written(row, state) for row, state in zip(rows, states, strict=True)]

    def decode(self, raw: bytes) -> Row[S]:
        """The row that `encode` wrote, for reading only: unknown fields are left out.

        Raises pydantic's ValidationError: a row that cannot be read is a bug.
        """
        return Row(**self._validate(raw))

    def decode_whole(self, raw: bytes) -> Row[S]:
        """The same, for writing it again. Raises for an unknown field, too: it would be lost."""
        return Row(**self._validate(raw, extra="forbid"))

    def is_like(self, state: S, initial: S) -> bool:
        """Whether a row with `state` would be read as one with `initial`; `==` alone tells a list from a tuple."""
        return state == initial or (isinstance(state, type(initial)) and self.is_read_like(to_json(state), initial))

    def is_read_like(self, state: bytes, initial: S) -> bool:
        """The same of a state as JSON, where 0.00 is not 0. Of one that can't be read, False."""
        first = to_json(initial)
        if state == first or initial is None:  # None is in no row
            return state == first
        try:
            one, other = self._validate_states(b"[%b,%b]" % (state, first))
        except ValueError:
            return False
        return bool(one == other)

    def check_initial(self, state: S) -> None:
        """Raises ValueError unless a row with `state` is read as it was written."""
        row = Row(sequence=0, state=state, outcomes={}, offset=-1)
        try:
            raw = self.encode(row)
            read = self.decode_whole(raw)
            if read == row or (type(read.state) is type(state) and self.encode(read) == raw):
                return
            reason = f"its row is read as {read.state!r}"
        except ValueError as error:
            reason = f"its row cannot be read: {error}"
        raise ValueError(f"initial={state!r}: {reason}; fix: make it of the type in `state`, or add its phase there")


def json_reader(fields: Mapping[str, Any]) -> Callable[..., Any]:
    """Reads a JSON object with these fields."""
    return TypeAdapter(TypedDict("RowFields", fields)).validator.validate_json  # type: ignore[operator]
