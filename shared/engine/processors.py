"""The pure parts bound to topics: what the engine does with each record of a source topic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

import structlog
from pydantic_core import from_json

from shared.domain.decider import Decider
from shared.domain.envelope import CommandEnvelope, EventEnvelope, identity_in
from shared.domain.errors import REASON_MAX_CHARS, BadMessage, RowUnreadable, Unknown, UnknownType
from shared.domain.history_index import (
    continued,
    ended,
    ended_key,
    goes_on_from,
    index_codec,
    key_of,
    number_of,
)
from shared.domain.ids import CALLERS
from shared.domain.message import Message
from shared.domain.outcomes import key_of as outcome_key
from shared.domain.outcomes import known, row_of
from shared.domain.row import FAILED, TOO_LARGE, Codec, Outcome, Row
from shared.domain.step import Step, failed, fingerprint, step
from shared.engine.batch import WORKER_FAILURES, Batch, Refusal
from shared.parking.parked import BUG, Failure
from shared.parking.parking import Parking
from shared.runtime.logs import trace_of
from shared.runtime.positions import Place
from shared.tables.rows import Rows, put_all
from shared.topology.join import Join
from shared.topology.policy import Policy
from shared.topology.projection import Projection
from shared.topology.publication import Publication
from shared.topology.records import SourceRecord
from shared.topology.rekey import Rekey
from shared.topology.timer import Timer
from shared.topology.topics import Table, Topic, outcomes_of

log = structlog.get_logger(__name__)

BEHIND = Failure("behind", "an earlier record of this key is parked")


class Processor(ABC):
    """Handles the records of one source topic. `table` and `codec` are set for those that keep rows, `outcomes` for
    those that decide commands; the rows of that table are the `outcomes` of their own. `history_index` is set for those
    whose rows may end: it tells of them then, as `ended` of their own.

    name: unique in its service and the same in every release: records that it can't handle are parked under this name.
    repeatable and copies: see shared.topology.replay.Replayable.
    from_start: whether it handles a source from its first record on; if not, from the end that the source has when the
    group first reads it.
    beside: other tables that it needs of the same partition, with their codecs. joined: those that it writes of them.
    reads: the classes of the messages that it reads, from its source or for its rows.
    writes: the topics that it writes to, except dead letters. events: the one that gets its own events, each in the
    partition of the record that led to it.
    verb: what it does with a record, in a word.
    is_spreading: whether the record in hand leads to more than fits a batch, and is to be handled again for the rest.
    """

    name: str
    verb: str = "handle"
    is_spreading: bool = False
    source: Topic
    table: Table | None = None
    outcomes: Table | None = None
    history_index: Table | None = None
    codec: Codec[Any] | None = None
    beside: Mapping[Table, Codec[Any]] = {}
    joined: Sequence[Table] = ()
    reads: Sequence[type[Message]] = ()
    delay_s: float = 0.0
    repeatable: bool = False
    from_start: bool = True
    copies: Sequence[Topic] = ()
    writes: Sequence[Topic] = ()
    events: Topic | None = None

    @property
    def tables(self) -> Sequence[Table]:
        """All that it writes."""
        own = self.table, self.outcomes, self.history_index, *self.joined
        return [table for table in own if table is not None]

    def rows_of(self, of: Callable[[Table], Rows[Any]]) -> Rows | None:
        """Those of its table, with the others that it needs beside them; None if it keeps none. of: gives a table's."""
        if self.table is None:
            return None
        rows = of(self.table)
        if self.outcomes is not None:
            rows.outcomes = of(self.outcomes)
        if self.history_index is not None:
            rows.ended = of(self.history_index)
        if self.beside:
            rows.beside = {table: of(table) for table in self.beside}
        return rows

    def process(self, records: Sequence[SourceRecord], rows: Rows | None, batch: Batch, parking: Parking) -> None:
        """Handle all `records`; one that can't be handled is parked, and later ones of its key if it holds them up."""
        for record in records:
            if parking.holds(self.name, record):
                parking.park(self.name, record, BEHIND)
            elif failure := self.attempt(record, rows, batch):
                batch.bury(record, failure.code, failure.reason)
                log.warning("a record is parked", code=failure.code, processor=self.name, **_told_of(record))
                park = parking.park if self.holds_up(failure) else parking.set_aside
                park(self.name, record, failure)

    def attempt(
        self, record: SourceRecord, rows: Rows | None, batch: Batch, *, retried_ms: int | None = None
    ) -> Failure | None:
        """Handle one record, or return why it can't be handled, with nothing changed.

        retried_ms: if it was parked, when an operator asked for another try, by the broker.
        """
        if batch.refused and (refusal := self.refusal(record, batch)):
            return Failure(TOO_LARGE, refusal.reason[:REASON_MAX_CHARS])
        try:
            if retried_ms is None:
                self.handle(record, rows, batch)
            else:
                self.retry(record, rows, batch, retried_ms)
        except UnknownType as unknown:
            return None if self.passes_over(unknown.message_type) else Failure(unknown.code, unknown.reason)
        except BadMessage as bad:
            return Failure(bad.code, bad.reason)
        except RowUnreadable as unreadable:
            told = {"reason": str(unreadable), **_told_of(record)}
            log.error("a row can't be read, so its key is parked", processor=self.name, **told)
            return Failure(unreadable.code, str(unreadable)[:REASON_MAX_CHARS])
        except WORKER_FAILURES:
            raise
        except Exception as bug:
            told = {"exception": trace_of(bug), **_told_of(record)}
            log.error("a record can't be handled: its processor failed", processor=self.name, **told)
            return Failure(BUG, _told(bug))
        return None

    def passes_over(self, type_: str) -> bool:
        """Whether to skip messages of this type, which the processor does not read."""
        return False

    def refusal(self, record: SourceRecord, batch: Batch) -> Refusal | None:
        """Why brokers do not take what this record leads to here, if they were asked before."""
        return batch.refused.get((self.name, Place(record.topic, record.partition), record.offset))

    def holds_up(self, failure: Failure) -> bool:
        """Whether later records of a key wait for one that failed so, because they were meant to come after it."""
        return True

    @abstractmethod
    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        """All or nothing: raise before the batch is touched."""

    def retry(self, record: SourceRecord, rows: Rows | None, batch: Batch, asked_ms: int) -> None:
        """As `handle`, for a record that was parked. asked_ms: see `attempt`."""
        self.handle(record, rows, batch)

    def recall(self, record: SourceRecord, parking: Parking) -> None:
        """Before a parked record is tried again, what is known of the moment when it came; here nothing."""
        return

    def restart(self) -> None:
        """What was handled and not committed is handled again."""
        return

    def note(self, partition: int, parking: Parking) -> None:
        """Note what rows don't tell of the records that were handled since it was last asked; here nothing."""
        return


def _told_of(record: SourceRecord) -> dict[str, Any]:
    """For the log: which record it is, and of which story, without its contents."""
    found = identity_in(record.value)
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": (record.key or b"").decode(errors="replace"),
        "correlation_id": found and found.correlation_id,
    }


def _told(bug: Exception) -> str:
    """Its type and message, short enough for a letter, and readable whatever is in it."""
    try:
        text = f"{type(bug).__name__}: {bug}"
    except Exception:  # its `__str__` has a bug, too
        text = type(bug).__name__
    return text[:REASON_MAX_CHARS].encode(errors="replace").decode()


class Listener(Processor):
    """Reads events of some types and passes over the others.

    own: all types of the source, if this worker itself writes it. Any other type comes from a later release, which may
    react to it, so the record is parked.
    """

    own: frozenset[str] | None = None

    def passes_over(self, type_: str) -> bool:
        return self.own is None or type_ in self.own


class Overtaken(BadMessage):
    """A parked command of which so much time has passed that a repeat of it may have taken effect unknown.

    Operator action: discard it. If it never took effect, send it again under a new id.
    """

    code = "command.overtaken"


class AggregateProcessor(Processor):
    """Commands in; events, the aggregate's row and the command's outcome out.

    A command that fails has changed nothing, so later ones don't wait for it. Its outcome says that it failed, until an
    operator retries it. Only what a later release may know keeps its place.
    """

    verb = "decide"
    events: Topic

    def __init__(self, decider: Decider[Any, Any, Any], *, table: Table, events: Topic) -> None:
        self.name = table.name
        self.source = table.source
        self.table = table
        self.outcomes = outcomes_of(table)
        self.codec = decider.row_codec
        self.decider = decider
        self.events = events
        self.writes = (events,)
        self.reads = (*decider.commands, *decider.events)
        self._ends = table.ends
        self._is_like = decider.row_codec.is_like
        self._decode = decider.command_codec.decode

    def holds_up(self, failure: Failure) -> bool:
        return failure.code in (Unknown.code, RowUnreadable.code)

    def attempt(
        self, record: SourceRecord, rows: Rows | None, batch: Batch, *, retried_ms: int | None = None
    ) -> Failure | None:
        failure = super().attempt(record, rows, batch, retried_ms=retried_ms)
        if failure is None or failure.code not in (BUG, TOO_LARGE):
            return failure
        told = failure if failure.code == TOO_LARGE else Failure(FAILED, failure.reason)
        return self._record(record, rows, batch, told, max(record.timestamp, retried_ms or 0))

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        command, row = self._read(record, rows)
        if record.offset > row.offset:  # else the row already includes this command
            self._decide(record, command, row, rows, batch, self._known(record, command, rows), record.timestamp)

    def retry(self, record: SourceRecord, rows: Rows | None, batch: Batch, asked_ms: int) -> None:
        command, row = self._read(record, rows)
        at = max(record.timestamp, asked_ms)  # its repeats are known from now on, however old it is
        decided = self._known(record, command, rows)
        told = decided or row.outcome(command.command_id)
        if record.offset <= row.offset:
            assert self.outcomes is not None
            if told is None and at - record.timestamp > self.outcomes.kept_ms:  # else one that is sent later is known
                raise Overtaken("its row does not know it any more; fix: discard it, and send it again under a new id")
            if told is not None and told.failed:  # else a repeat of it was decided
                row = row.without(command.command_id)
        self._decide(record, command, row, rows, batch, decided, at)

    def _known(self, record: SourceRecord, command: CommandEnvelope[Any], rows: Rows | None) -> Outcome | None:
        """What was known when the record came, or is since: outcomes are stored for twice as long as they count."""
        assert rows is not None
        assert rows.outcomes is not None
        assert self.outcomes is not None
        return known(rows.outcomes.get, command, record.timestamp, self.outcomes.kept_ms)

    def _read(self, record: SourceRecord, rows: Rows | None) -> tuple[CommandEnvelope[Any], Row[Any]]:
        assert rows is not None
        command = self._decode(record.value)
        key = command.aggregate_id.encode()
        if record.key != key:
            raise BadMessage("the record's key is not the aggregate id in its body")
        return command, rows.get(key) or self._unkept(command.aggregate_id, rows)

    def _unkept(self, aggregate_id: str, rows: Rows) -> Row[Any]:
        """The row of an aggregate of which the table has none: it never began, or has ended, maybe long ago."""
        told = None if rows.ended is None else rows.ended.get(ended_key(aggregate_id))
        return goes_on_from(self.decider.initial_row, told)

    def _decide(
        self,
        record: SourceRecord,
        command: CommandEnvelope[Any],
        row: Row[Any],
        rows: Rows | None,
        batch: Batch,
        decided: Outcome | None,
        at: int,
    ) -> None:
        """decided: an earlier record's outcome of the same command. at: this one's time, by the brokers' in the log."""
        assert rows is not None
        key = command.aggregate_id.encode()
        is_kept = command.expected_sequence != 0 or self._has_begun(rows.get(key))  # asked only where it matters
        done = step(self.decider, row, command, max(record.offset, row.offset), decided, is_kept=is_kept)
        if not done.repeated:
            self._put(rows, command, done, record.offset, at)
        else:
            batch.repeats += 1
            if not done.outcome.is_of(fingerprint(command.data, command.expected_sequence)):
                self._lost(record, command, done.outcome, batch)
        for event in done.events:
            batch.write(self.events.name, key, event, record.partition)
        batch.outcomes.append((command.aggregate_id, done.outcome))

    def _has_begun(self, row: Row[Any] | None) -> bool:
        """Whether there is something of it. Its row may be there only for the commands that failed."""
        return row is not None and not (self._ends and self._is_like(row.state, self.decider.initial))

    def _record(self, record: SourceRecord, rows: Rows | None, batch: Batch, failure: Failure, at: int) -> Failure:
        """Make it the command's outcome that it failed, so that its sender gets an answer, and so does each repeat.

        at: as in `_decide`.
        """
        assert rows is not None
        detail = failure.reason if failure.code == TOO_LARGE else None  # a bug's words are no caller's
        try:
            command, row = self._read(record, rows)
            done = failed(row, command, max(record.offset, row.offset), failure.code, detail)
        except WORKER_FAILURES:
            raise
        except Exception:  # the bug is in a validator, an upcaster or a serializer
            return failure
        refusal = self.refusal(record, batch)
        if refusal is None or refusal.times == 1:  # else not even the outcome fits the row
            self._put(rows, command, done, record.offset, at)
        batch.outcomes.append((command.aggregate_id, done.outcome))
        return failure

    def _put(self, rows: Rows, command: CommandEnvelope[Any], done: Step[Any], offset: int, at: int) -> None:
        """Write the aggregate's row, and the outcome beside it, except one that failed: that is in the row."""
        assert rows.outcomes is not None
        if self._ends and not done.row.outcomes and self._is_like(done.row.state, self.decider.initial):
            self._end(rows, command, done)
        else:
            rows.put(command.aggregate_id.encode(), done.row)
        if not done.outcome.failed:
            key = outcome_key(command.aggregate_id, command.command_id)
            rows.outcomes.put(key, row_of(done.outcome, at, offset))

    def _end(self, rows: Rows, command: CommandEnvelope[Any], done: Step[Any]) -> None:
        """Delete the row, and note where the aggregate goes on; nothing where it had ended before.

        The deletion is written even if there was no row: a changelog without a record is taken for another table's.
        """
        assert rows.ended is not None
        key = command.aggregate_id.encode()
        if rows.get(key) is None and not done.events:
            return
        if done.row.sequence:
            rows.ended.put(ended_key(command.aggregate_id), ended(done.row))
        rows.put(key, None)

    def _lost(self, record: SourceRecord, command: CommandEnvelope[Any], known: Outcome, batch: Batch) -> None:
        """The command's id is used up. Later ones of its key do not wait for it: it can't be mended, only sent anew."""
        lost = "its id is that of an earlier one with another body"
        earlier = f"sequence {known.sequence}, {known.code or 'accepted'}"
        if not command.command_id.startswith(CALLERS):  # theirs get 409, and would fill the topic
            batch.bury(record, "command.id_reused", f"{lost}: {earlier}")
        log.warning(
            f"a command has no effect: {lost}",
            command=f"{command.aggregate_id}/{command.command_id}",
            type=command.data.TYPE,
            correlation_id=command.correlation_id,
            causation_id=command.causation_id,
            earlier=earlier,
        )


Joins = Mapping[Join[Any], Sequence[Projection[Any, Any]]]
"""Each with the projections of what it joins, in its order."""


class ProjectionProcessor(Listener):
    """Events in; the row under the record's key out, and the rows that are joined of it."""

    verb = "project"
    repeatable = True

    def __init__(self, projection: Projection[Any, Any], joins: Joins = MappingProxyType({})) -> None:
        """joins: those of all tables; the others have no part in it."""
        self.name = projection.table.name
        self.source = projection.table.source
        self.table = projection.table
        self.projection = projection
        self.reads = projection.events
        self.codec = projection.row_codec
        self._project = projection.project
        self._ends = projection.table.ends
        self._is_like = projection.row_codec.is_like
        self._ended = -1  # records up to there are included, also where a key has no row
        self._last_end = -1
        self._initial = projection.initial_row
        self._decode = projection.event_codec.decode
        self._joins = {join: parts for join, parts in joins.items() if projection in parts}
        self.joined = [join.table for join in self._joins]
        others = {each.table: each.row_codec for parts in self._joins.values() for each in parts if each != projection}
        self.beside = others | {join.table: join.row_codec for join in self._joins}

    def process(self, records: Sequence[SourceRecord], rows: Rows | None, batch: Batch, parking: Parking) -> None:
        """A row skips what it includes, if its source is read again. One that has ended can't: the partition does."""
        if not self._ends:
            super().process(records, rows, batch, parking)
            return
        self._last_end, self._ended = -1, parking.ended(self.name, self.source.name)
        try:
            super().process(records, rows, batch, parking)
        finally:
            self._ended = -1  # what is retried was never included
        self.note(records[0].partition, parking)

    def note(self, partition: int, parking: Parking) -> None:
        last, self._last_end = self._last_end, -1
        if last > parking.ended(self.name, self.source.name):
            parking.note_ended(self.name, partition, self.source.name, last)

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        assert rows is not None
        event = self._decode(record.value)
        if record.key is None:
            raise BadMessage("no key")
        kept = rows.get(record.key)
        if record.offset <= (kept.offset if kept else self._ended):
            return
        row = kept if kept and not self._has_expired(kept.state, event) else self._initial
        view = self._project(row.state, event, record.key.decode())
        has_ended = self._ends and (self._is_like(view, self._initial.state) or self._has_expired(view, event))
        if kept or not has_ended:
            after = None if has_ended else Row(row.sequence + 1, view, row.outcomes, record.offset)
            self._put(rows, record.key, after)
            if has_ended:
                self._last_end = record.offset

    def _has_expired(self, view: Any, event: EventEnvelope[Any]) -> bool:
        return False

    def _put(self, rows: Rows, key: bytes, after: Row[Any] | None) -> None:
        if self._joins:
            put_all(key, [(rows, after), *self._joined_with(after or self._initial, key, rows.beside)])
        else:
            rows.put(key, after)

    def _joined_with(
        self, after: Row[Any], key: bytes, beside: Mapping[Table, Rows]
    ) -> Iterator[tuple[Rows, Row[Any] | None]]:
        """The rows of `key` that change with this one; None for those that end with it."""
        for join, parts in self._joins.items():
            made_of = [
                after if each is self.projection else beside[each.table].get(key) or each.initial_row
                for each in parts[: len(join.table.joins)]
            ]
            yield beside[join.table], join.row([*made_of, *referred(join, parts, made_of[0], beside)], key.decode())


def referred(
    join: Join[Any], parts: Sequence[Projection[Any, Any]], first: Row[Any], beside: Mapping[Table, Rows]
) -> Iterator[Row[Any]]:
    """The rows that one of the first view refers to."""
    for each, key in zip(parts[len(join.table.joins) :], join.keys_of(first.state), strict=True):
        yield (None if key is None else beside[each.table].get(key)) or each.initial_row


class HistoryIndexProcessor(Processor):
    """An aggregate's own events in; their offsets, by entry of the history index, out."""

    verb = "index"
    repeatable = True

    def __init__(self, decider: Decider[Any, Any, Any], *, source: Topic, table: Table) -> None:
        self.name = table.name
        self.source = source
        self.table = table
        self.codec = index_codec(decider.state)
        self.reads = decider.events
        self._decider = decider
        self._decode = decider.event_codec.decode

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        assert rows is not None
        event = self._decode(record.value)
        number = number_of(event.sequence)
        key = key_of(event.aggregate_id, number)
        row = rows.get(key)
        if row is not None and record.offset <= row.offset:
            return
        if row is None and number:
            row = rows.get(key_of(event.aggregate_id, number - 1))
        entry = continued(row.state if row else None, event, record.offset, self._decider)
        rows.put(key, Row(event.sequence, entry, {}, record.offset))


class PolicyProcessor(Listener):
    """Events in; commands out, in the same transaction."""

    verb = "react"

    def __init__(self, policy: Policy) -> None:
        self.name = policy.parked_under
        self.source = policy.source
        self.writes = tuple(policy.commands)
        self.reads = policy.events
        self.from_start = policy.from_start
        self.policy = policy

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        for sent in list(self.policy.sends(record.value)):
            batch.write(sent.topic, sent.key, sent.body)


class RekeyProcessor(Listener):
    """Events in; the same bytes out under other keys."""

    verb = "rekey"
    repeatable = True

    def __init__(self, rekey: Rekey, partitions: int = 1) -> None:
        """partitions: the number of those of its targets."""
        self.name = f"rekey.{rekey.name}"
        self.source = rekey.source
        self.copies = self.writes = rekey.targets
        self.reads = rekey.events
        self._rekey = rekey
        self._partitions = partitions

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        for target, key in self._rekey.copies(record.value):
            batch.write(target, key, record.value or b"")
        for topic in self._rekey.everywhere:
            for number in range(self._partitions):
                batch.write(topic.name, record.key, record.value or b"", number)


class PublicationProcessor(Listener):
    """Events in; public events out, in the same transaction and partition."""

    verb = "publish"

    def __init__(self, publication: Publication) -> None:
        self.name = publication.parked_under
        self.source = publication.source
        self.writes = (publication.topic,)
        self.reads = publication.events
        self.from_start = publication.from_start
        self.publication = publication

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        if published := self.publication.published(record.value):
            headers, body = published
            batch.write(self.publication.topic.name, record.key, body, record.partition, headers)


class TimerProcessor(Processor):
    """Records in; the same records out once they are old enough."""

    verb = "delay"

    def __init__(self, timer: Timer) -> None:
        self.name = f"delay.{timer.source.name}"
        self.source = timer.source
        self.delay_s = timer.delay_s
        self.writes = (timer.target,)
        self._target = timer.target.name
        self.due = timer.due

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        topic = self._target if self._is_due(record) else self.source.name
        batch.write(topic, record.key, record.value or b"")

    def _is_due(self, record: SourceRecord) -> bool:
        """By the log alone, so that every worker says the same. What can't be read is for the target to refuse."""
        if self.due is None:
            return True
        try:
            due = datetime.fromisoformat(from_json(record.value or b"")["data"][self.due])
        except (LookupError, TypeError, ValueError):
            return True
        return due.timestamp() <= record.timestamp / 1000 + self.delay_s
