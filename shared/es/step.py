"""One command, decided once: the whole of what an engine does to an aggregate, without the engine."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Generic

from msgspec import Struct

from shared.es.decider import Decider, fold
from shared.es.envelope import C, CommandEnvelope, E
from shared.es.errors import DomainError
from shared.es.ids import derived_id
from shared.es.message import Command
from shared.es.row import Outcome, Row, S


class Step(Struct, Generic[S], frozen=True, gc=False):
    """What a command led to, its events as they are written. A `repeated` one leaves the row as it is."""

    row: Row[S]
    events: tuple[bytes, ...]
    outcome: Outcome
    repeated: bool


def step(decider: Decider[C, E, S], row: Row[S], command: CommandEnvelope[C], offset: int) -> Step[S]:
    """What `command`, found at `offset` of its topic, leads to. A refusal is an outcome without events."""
    known = row.outcome(command.command_id)
    if known is not None:
        return Step(row, (), known, repeated=True)
    digest = fingerprint(command.data)
    try:
        facts = decider.decide(command.data, row.state)
    except DomainError as refusal:
        outcome = Outcome(command.command_id, row.sequence, refusal.code, str(refusal), digest)
        return Step(row.after(outcome, row.state, offset), (), outcome, repeated=False)
    outcome = Outcome(command.command_id, row.sequence + len(facts), None, None, digest)
    after = row.after(outcome, fold(decider.evolve, facts, row.state), offset)
    return Step(after, _written(decider, facts, row.sequence, command), outcome, repeated=False)


def fingerprint(command: Command) -> str:
    """16 hex digits of the type and every field: tell a repeat from a command id that was used twice.

    What has its default counts as absent, so that a release with a new field knows the repeats of what came before.
    """
    body = command.__pydantic_serializer__.to_json(command, exclude_defaults=True)
    return blake2b(command.TYPE.encode() + body, digest_size=8).hexdigest()


def _written(
    decider: Decider[C, E, S], facts: Sequence[E], start: int, command: CommandEnvelope[C]
) -> tuple[bytes, ...]:
    write = decider.event_codec.write
    aggregate_id, command_id = command.aggregate_id, command.command_id
    written = [
        write(
            fact,
            event_id=derived_id(aggregate_id, command_id, str(index)),
            aggregate_id=aggregate_id,
            sequence=start + index,
            occurred_at=command.issued_at,
            correlation_id=command.correlation_id,
            causation_id=command_id,
        )
        for index, fact in enumerate(facts, start=1)
    ]
    return tuple(written)
