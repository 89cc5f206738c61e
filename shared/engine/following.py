"""A version that shadows another keeps its aggregates' rows by the other's events, rows and outcomes.

The states are its own: folded from the events by its own `evolve`. What events do not tell is taken over: which
commands were decided, how, and up to which record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from shared.domain.errors import BadMessage
from shared.domain.outcomes import OUTCOME_CODEC
from shared.domain.row import Recorded, Row
from shared.engine.batch import Batch
from shared.engine.processors import AggregateProcessor, Processor
from shared.tables.rows import Rows
from shared.topology.records import SourceRecord
from shared.topology.topics import Topic, Topology


class Following(Processor):
    """Reads what another version writes."""

    verb = "follow"
    repeatable = True

    def __init__(self, aggregates: AggregateProcessor, source: Topic) -> None:
        self.source = source
        self.table = aggregates.table
        self.codec = aggregates.codec
        self.decider = aggregates.decider
        self.name = f"follow.{source.name}"

    def _row(self, key: bytes, rows: Rows | None) -> Row[Any]:
        assert rows is not None
        return rows.get(key) or self.decider.initial_row


class FollowedEvents(Following):
    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        assert rows is not None
        event = self.decider.event_codec.decode(record.value)
        key = event.aggregate_id.encode()
        row = self._row(key, rows)
        if event.sequence <= row.sequence:
            return
        if event.sequence != row.sequence + 1:
            raise BadMessage(f"event {event.sequence} comes after event {row.sequence}")
        rows.put(key, Row(event.sequence, self.decider.evolve(row.state, event.data), row.outcomes, row.offset))


class _Told(Struct, frozen=True, gc=False):
    outcomes: dict[str, Recorded]
    offset: int


_told = Decoder(_Told).decode


class FollowedRows(Following):
    """Of the other version's aggregates: all but their states."""

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        assert rows is not None
        if record.value is None or record.key is None:
            return
        try:
            told = _told(record.value)
        except ValueError as error:
            raise BadMessage(f"a row of another version can't be read: {error}") from error
        row = self._row(record.key, rows)
        if told.offset >= row.offset:
            rows.put(record.key, Row(row.sequence, row.state, told.outcomes, told.offset))


class FollowedOutcomes(Following):
    """What became of commands, as it is."""

    def __init__(self, aggregates: AggregateProcessor, source: Topic) -> None:
        super().__init__(aggregates, source)
        self.table = aggregates.outcomes

    def handle(self, record: SourceRecord, rows: Rows | None, batch: Batch) -> None:
        assert rows is not None
        if record.key is None:
            return
        try:
            rows.put(record.key, None if record.value is None else OUTCOME_CODEC.decode_whole(record.value))  # type: ignore[arg-type]
        except ValueError as error:
            raise BadMessage(f"an outcome of another version can't be read: {error}") from error


def followers(topology: Topology, processors: Sequence[Processor], version: int) -> Mapping[str, Sequence[Following]]:
    """What this version needs to follow that one, by source; nothing where it has no aggregates."""
    other = replace(topology, version=version)
    found: dict[str, Sequence[Following]] = {}
    for each in processors:
        if isinstance(each, AggregateProcessor) and each.table is not None and each.outcomes is not None:
            rows, outcomes = other.changelog(each.table), other.changelog(each.outcomes)
            for follower in (
                FollowedEvents(each, each.events),
                FollowedRows(each, rows),
                FollowedOutcomes(each, outcomes),
            ):
                found[follower.source.name] = [follower]
    return found
