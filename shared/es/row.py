"""What the table keeps of one aggregate, as JSON that people, Spark and the engine can read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, Generic, NotRequired, TypeVar

from msgspec import Struct
from msgspec.json import Encoder
from pydantic import TypeAdapter
from pydantic_core import to_json
from typing_extensions import TypedDict

from shared.es.roundtrip import check_roundtrip

S = TypeVar("S")

OUTCOMES_KEPT = 32
"""A command repeated after this many others of its aggregate is decided again: callers' after callers' alone.

As many more are kept of those that failed, so that they can be retried although others were decided meanwhile.
"""

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
        return self.code in FAILURES

    def is_of(self, digest: str) -> bool:
        """Whether this is the outcome of a command with that fingerprint; true also when its own is unknown."""
        return self.fingerprint in (digest, UNKNOWN_BODY)


Recorded = list[Any]
"""[sequence, fingerprint] of an accepted command, [sequence, fingerprint, code, detail] of a refused one."""

_ACCEPTED_FIELDS = 2


# A struct: as immutable as a frozen dataclass or a named tuple, and built in a fraction of their time.
class Row(Struct, Generic[S], frozen=True, gc=False):
    """An aggregate after `sequence` events.

    outcomes   the latest commands by id, first those that failed, then the others, each oldest first
    offset     of the record that last wrote the row, in its source partition; -1 before the first
    reactions  as outcomes, but of commands that policies sent: those of callers would soon be forgotten among them
    """

    sequence: int
    state: S
    outcomes: dict[str, Recorded]
    offset: int
    reactions: dict[str, Recorded] = {}

    def outcome(self, command_id: str, *, by_policy: bool = False) -> Outcome | None:
        """What became of the command, if it is among the latest: of its own kind, else of the other."""
        own, others = (self.reactions, self.outcomes) if by_policy else (self.outcomes, self.reactions)
        recorded = own.get(command_id) or others.get(command_id)
        if recorded is None:
            return None
        sequence, fingerprint, code, detail = (*recorded, None, None)[:4]
        return Outcome(command_id, sequence, code, detail, fingerprint)

    def after(self, outcome: Outcome, state: S, offset: int, *, by_policy: bool = False) -> "Row[S]":
        """The row with `outcome` as its latest; the oldest of its kind is dropped when there are too many."""
        if by_policy:
            return Row(outcome.sequence, state, self.outcomes, offset, _with(self.reactions, outcome))
        return Row(outcome.sequence, state, _with(self.outcomes, outcome), offset, self.reactions)

    def without(self, command_id: str) -> "Row[S]":
        """The row as if the command had never come."""
        outcomes, reactions = (
            {id_: recorded for id_, recorded in kept.items() if id_ != command_id}
            for kept in (self.outcomes, self.reactions)
        )
        return Row(self.sequence, self.state, outcomes, self.offset, reactions)


def _with(kept: dict[str, Recorded], outcome: Outcome) -> dict[str, Recorded]:
    if outcome.failed:
        failures = [id_ for id_ in _failures(kept) if id_ != outcome.command_id][1 - OUTCOMES_KEPT :]
        others = {id_: recorded for id_, recorded in kept.items() if not _has_failed(recorded)}
        return {id_: kept[id_] for id_ in failures} | {outcome.command_id: _recorded(outcome)} | others
    outcomes = kept.copy()  # once an entry is deleted, {**kept} takes five times as long
    outcomes[outcome.command_id] = _recorded(outcome)
    if len(outcomes) > OUTCOMES_KEPT:
        oldest = next(iter(outcomes))
        if _has_failed(outcomes[oldest]):
            failed = sum(1 for _ in _failures(outcomes))
            if len(outcomes) - failed <= OUTCOMES_KEPT:
                return outcomes
            oldest = next(islice(outcomes, failed, None))
        del outcomes[oldest]
    return outcomes


def _recorded(outcome: Outcome) -> Recorded:
    if outcome.code is None:
        return [outcome.sequence, outcome.fingerprint]
    return [outcome.sequence, outcome.fingerprint, outcome.code, outcome.detail]


def _failures(outcomes: dict[str, Recorded]) -> Iterator[str]:
    """Their ids: they come first, so that none of the others has to be looked at."""
    return takewhile(lambda id_: _has_failed(outcomes[id_]), outcomes)


def _has_failed(recorded: Recorded) -> bool:
    return len(recorded) > _ACCEPTED_FIELDS and recorded[_ACCEPTED_FIELDS] in FAILURES


_outcomes_json = Encoder().encode  # as pydantic writes them, in less than half the time


def _reactions_field(row: Row[Any]) -> bytes:
    return b',"reactions":' + _outcomes_json(row.reactions) if row.reactions else b""


class RowCodec(Generic[S]):
    """Reads and writes rows whose state is of `state_type`, a type or a union of phases.

    Raises ValueError for a type that `check_roundtrip` refuses.
    """

    def __init__(self, state_type: Any) -> None:
        check_roundtrip(state_type, whole=True)
        self.state_type = state_type
        outcomes = dict[str, Any]
        fields = {
            "sequence": int,
            "state": state_type,
            "outcomes": outcomes,
            "reactions": NotRequired[outcomes],
            "offset": int,
        }
        self._validate = json_reader(fields)
        self._validate_states = TypeAdapter(list[state_type]).validator.validate_json

    def encode(self, row: Row[S]) -> bytes:
        """{"sequence", "state", "outcomes", "reactions" if there are any, "offset"}: equal rows give equal bytes."""
        reactions = {"reactions": row.reactions} if row.reactions else {}
        return to_json(
            {"sequence": row.sequence, "state": row.state, "outcomes": row.outcomes, **reactions, "offset": row.offset}
        )

    def encode_checked(self, rows: Sequence[Row[S]]) -> list[bytes]:
        """The same, of each. Raises ValueError for a state that could not be read again, as with an infinite float.

        One call checks all states, in a quarter of the time of one each. In the list they are as deep as in a row.
        """
        states = [to_json(row.state) for row in rows]
        self._validate_states(b"[%b]" % b",".join(states), extra="forbid")
        return [
            b'{"sequence":%d,"state":%b,"outcomes":%b%b,"offset":%d}'
            % (row.sequence, state, _outcomes_json(row.outcomes), _reactions_field(row), row.offset)
            for row, state in zip(rows, states, strict=True)
        ]

    def decode(self, raw: bytes) -> Row[S]:
        """The row that `encode` wrote, for reading only: unknown fields are left out.

        Raises pydantic's ValidationError: a row that cannot be read is a bug.
        """
        return Row(**self._validate(raw))

    def decode_whole(self, raw: bytes) -> Row[S]:
        """The same, for writing it again. Raises for an unknown field, too: it would be lost."""
        return Row(**self._validate(raw, extra="forbid"))

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
