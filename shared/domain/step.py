"""One command, decided once: everything that an engine does to an aggregate, without the engine."""

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, Generic

from msgspec import UNSET, Struct

from shared.domain.decider import Decider, fold
from shared.domain.envelope import C, CommandEnvelope, E, Expected
from shared.domain.errors import DETAIL_MAX_CHARS, DomainError, SequenceMismatch
from shared.domain.ids import derived_id
from shared.domain.message import Command
from shared.domain.row import FAILED, Outcome, Row, S


class Step(Struct, Generic[S], frozen=True, gc=False):
    """The result of a command. events: encoded. repeated: the command was decided before, so the row stays as it is."""

    row: Row[S]
    events: tuple[bytes, ...]
    outcome: Outcome
    repeated: bool


def step(
    decider: Decider[C, E, S],
    row: Row[S],
    command: CommandEnvelope[C],
    offset: int,
    known: Outcome | None = None,
    *,
    is_kept: bool = True,
) -> Step[S]:
    """The result of `command`, which lies at `offset` of its topic. A refusal is an outcome without events.

    known: the outcome of an earlier record of the same command, unless it failed: that is in the row. is_kept: whether
    the table has the row; an aggregate of which it has none has never begun, or has ended.
    """
    digest = fingerprint(command.data, command.expected_sequence)
    earlier = known or row.outcome(command.command_id)
    if earlier is not None:
        return Step(row, (), earlier, repeated=True)
    try:
        _check_sequence(command, row, is_kept)
        decider.check_id(command.aggregate_id, command.data)
        events = decider.decide(command.data, row.state)
    except DomainError as refusal:
        # it may quote the command, which may be long; and what no JSON can hold would make the outcome unwritable
        detail = str(refusal)[:DETAIL_MAX_CHARS].encode(errors="replace").decode()
        outcome = Outcome(command.command_id, row.sequence, refusal.code, detail, digest)
        return Step(row.after(outcome, row.state, offset), (), outcome, repeated=False)
    outcome = Outcome(command.command_id, row.sequence + len(events), None, None, digest)
    after = row.after(outcome, fold(decider.evolve, events, row.state), offset)
    return Step(after, _encoded(decider, events, row.sequence, command), outcome, repeated=False)


def failed(
    row: Row[S], command: CommandEnvelope[C], offset: int, code: str = FAILED, detail: str | None = None
) -> Step[S]:
    """The result of a command that could not be handled: its outcome says so, and it has no other effect."""
    digest = fingerprint(command.data, command.expected_sequence)
    outcome = Outcome(command.command_id, row.sequence, code, detail, digest)
    return Step(row.after(outcome, row.state, offset), (), outcome, repeated=False)


def _check_sequence(command: CommandEnvelope[Any], row: Row[Any], is_kept: bool) -> None:
    """Raises SequenceMismatch. A refused command changes no sequence, so one that finds its own finds its state.

    A sender that expects 0 has seen nothing, and so does one that comes after an end.
    """
    expected = command.expected_sequence
    if expected is not UNSET and expected != row.sequence and (is_kept or expected):
        found = f"{command.aggregate_id} is at sequence {row.sequence}"
        raise SequenceMismatch(f"{found}, and the command was meant for {expected}")


def fingerprint(command: Command, expected: Expected = UNSET) -> str:
    """16 hex digits of the type, every field and what it expects: tells a repeat from another command with the same id.

    Fields with their default value are left out, so that a release with a new field recognises older commands' repeats;
    not so the fields of inner models, for in a union a default can be all that tells them apart.
    """
    defaults = _defaults(type(command))
    # most commands have no defaults, and then an empty set would cost a fifth more
    unsaid = {name for name, default in defaults if _is_same(getattr(command, name), default)} if defaults else None
    body = command.__pydantic_serializer__.to_json(command, exclude=unsaid)
    if expected is not UNSET:
        body += b"@%d" % expected
    return blake2b(command.TYPE.encode() + body, digest_size=8).hexdigest()


@cache
def _defaults(command: type[Command]) -> Sequence[tuple[str, Any]]:
    """Names and values, without those that are computed from other fields."""
    return [
        (name, field.get_default(call_default_factory=True))
        for name, field in command.model_fields.items()
        if not field.is_required() and not field.default_factory_takes_validated_data
    ]


def _is_same(value: object, default: object) -> bool:
    """Whether they are equal, and not one of them False and the other 0."""
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def _encoded(
    decider: Decider[C, E, S], events: Sequence[E], start: int, command: CommandEnvelope[C]
) -> tuple[bytes, ...]:
    write = decider.event_codec.write
    aggregate_id, command_id = command.aggregate_id, command.command_id
    encoded = [
        write(
            event,
            # with the sequence: a command that was forgotten is decided again, and what follows is another event
            event_id=derived_id(aggregate_id, command_id, str(sequence)),
            aggregate_id=aggregate_id,
            sequence=sequence,
            occurred_at=command.issued_at,
            correlation_id=command.correlation_id,
            causation_id=command_id,
        )
        for sequence, event in enumerate(events, start + 1)
    ]
    return tuple(encoded)
