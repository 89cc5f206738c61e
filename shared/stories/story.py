"""A story as a tree: which record followed from which, when, and where each lies. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property

from msgspec import Struct, ValidationError
from msgspec.json import Decoder
from pydantic import BaseModel, ConfigDict

from shared.domain.envelope import Identity, identity_in
from shared.topology.records import SourceRecord


class Failure(BaseModel):
    """That a record was parked, from its dead letter, whose reason may tell of contents: `dead-letters` has that."""

    code: str
    at: datetime


class Step(BaseModel):
    """A record of a story.

    depth: how many records are above it in the tree. cause: its place in the list of that which it follows from; None
    for one that a caller sent, or whose cause was not found. id: of the message, which copies share.
    at: when it was appended, by its broker. waited_ms: how long after its cause that was: in the log, to be handled,
    and till the commit; None without a cause.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    type: str
    topic: str
    partition: int
    offset: int
    key: str | None
    at: datetime
    causation_id: str | None
    depth: int
    cause: int | None
    waited_ms: int | None
    failures: tuple[Failure, ...] = ()

    @property
    def service(self) -> str:
        """The one whose topic it lies in."""
        return self.topic.split(".")[0]

    @property
    def kind(self) -> str:
        """Of its topic: commands, events, timers, or another."""
        return self.topic.split(".")[1]

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


class Story(BaseModel):
    """All records with one correlation id that were found, each behind its cause; the effects of one by their time.

    whole: whether each cause was found, every topic read, and so far that no more is to be expected. read_until: up to
    when they were read, a minute or more after the last step, though an outage may have been longer; null if to their
    ends, or as far as there was time. unread: topics that the brokers do not let us read, or do not have. circular: how
    many records are no steps, because their causes go round in a circle.
    records_read, seconds: what the search took.
    """

    model_config = ConfigDict(frozen=True)

    correlation_id: str
    whole: bool
    read_until: datetime | None
    unread: tuple[str, ...]
    circular: int
    records_read: int
    seconds: float
    steps: tuple[Step, ...]


class Letter(Struct, frozen=True, gc=False):
    """What a story needs of a dead letter: the parked record's place, and why it was parked, in a word."""

    topic: str
    partition: int
    offset: int
    code: str


_read_letter = Decoder(Letter).decode


class Told:
    """A record that belongs to a story, or seems to."""

    def __init__(self, record: SourceRecord, body: Identity) -> None:
        self.record = record
        self.body = body
        self.id = body.id
        self.at = record.timestamp
        self.is_command = bool(body.command_id)
        self.kind = record.topic.split(".")[1] if "." in record.topic else ""

    @cached_property
    def order(self) -> tuple[bool, int, str, int, int]:
        """The original before its copies: a timer before the command when it is due, an event before re-keyed ones."""
        record = self.record
        is_copy = self.kind != ("timers" if self.is_command else "events")
        return is_copy, record.timestamp, record.topic, record.partition, record.offset


def told(record: SourceRecord) -> Told | None:
    """The record, if it is a command or an event."""
    body = identity_in(record.value)
    return None if body is None else Told(record, body)


def letter(record: SourceRecord) -> Letter | None:
    """The record, if it is a dead letter."""
    try:
        return _read_letter(record.value or b"")
    except (ValidationError, ValueError):
        return None


def unexplained(found: Sequence[Told]) -> set[str]:
    """Ids of causes that were not found."""
    return {each.body.causation_id for each in found if each.body.causation_id} - {each.id for each in found}


def pending(found: Sequence[Told]) -> set[str]:
    """Ids of timers that were not found in the topic that they go to once they are due."""
    return {each.id for each in found if each.kind == "timers"} - {each.id for each in found if each.kind != "timers"}


def as_steps(found: Iterable[Told], letters: Iterable[tuple[Letter, int]] = ()) -> list[Step]:
    """The tree, read from above. letters: each with its time, in ms since the epoch."""
    records = sorted(found, key=lambda each: each.order)
    by_id: dict[str, list[Told]] = defaultdict(list)
    for each in records:
        by_id[each.id].append(each)
    effects: dict[Told | None, list[Told]] = defaultdict(list)
    for each in records:
        effects[_cause(each, by_id)].append(each)
    failures: dict[tuple[str, int, int], list[Failure]] = defaultdict(list)
    for of, at in letters:
        failures[of.topic, of.partition, of.offset].append(Failure(code=of.code, at=instant(at)))
    latest: dict[int, int] = {}  # by depth
    steps: list[Step] = []
    for each, depth, cause in _from_above(effects):
        steps.append(_step(each, depth, cause, latest.get(depth - 1), failures))
        latest[depth] = len(steps) - 1
    return steps


def _cause(each: Told, by_id: Mapping[str, Sequence[Told]]) -> Told | None:
    """A copy follows from its original; an event from the record that was decided; a command from the first event."""
    original = by_id[each.id][0]
    if original is not each:
        return original
    causes = [cause for cause in by_id.get(each.body.causation_id or "", ()) if cause is not each]
    decided = [cause for cause in causes if cause.kind == "commands"] if not each.is_command else []
    return next(iter(decided or causes), None)


def _from_above(effects: Mapping[Told | None, Sequence[Told]]) -> Iterator[tuple[Told, int, Told | None]]:
    """Each with its depth and cause. Those whose ids go round in a circle, as only a stranger writes them, are left."""
    waiting: list[tuple[Told, int, Told | None]] = [(each, 0, None) for each in _latest_first(effects.get(None, ()))]
    while waiting:
        each, depth, cause = waiting.pop()
        yield each, depth, cause
        waiting += [(effect, depth + 1, each) for effect in _latest_first(effects.get(each, ()))]


def _latest_first(records: Sequence[Told]) -> Sequence[Told]:
    return sorted(records, key=lambda each: (each.at, *each.order), reverse=True)


def _step(
    each: Told,
    depth: int,
    cause: Told | None,
    cause_at: int | None,
    failures: Mapping[tuple[str, int, int], Sequence[Failure]],
) -> Step:
    record = each.record
    return Step(
        id=each.id,
        type=each.body.type,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=None if record.key is None else record.key.decode(errors="replace"),
        at=instant(each.at),
        causation_id=each.body.causation_id,
        depth=depth,
        cause=cause_at,
        waited_ms=max(0, each.at - cause.at) if cause else None,
        failures=tuple(failures.get((record.topic, record.partition, record.offset), ())),
    )


def instant(at_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
