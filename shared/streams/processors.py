"""The pure parts bound to topics: what the engine does with each record of a source topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import structlog

from shared.es.decider import Decider
from shared.es.envelope import CommandEnvelope
from shared.es.errors import BadMessage
from shared.es.row import RowCodec
from shared.es.step import step
from shared.streams.batch import Batch, Rows, SourceRecord
from shared.topology import Table, Topic

log = structlog.get_logger(__name__)


class Processor(Protocol):
    """Handles the records of `source`; `table`, when there is one, is fed by nothing else."""

    @property
    def source(self) -> Topic: ...
    @property
    def table(self) -> Table | None: ...
    @property
    def codec(self) -> RowCodec[Any] | None: ...
    def process(self, records: Sequence[SourceRecord], rows: Rows | None, batch: Batch) -> None: ...


class Aggregate:
    """Commands in; events, the aggregate's row and the command's outcome out."""

    def __init__(self, decider: Decider[Any, Any, Any], *, table: Table, events: Topic) -> None:
        self.decider = decider
        self.table = table
        self.events = events
        self.codec = decider.row_codec
        self._decode = decider.command_codec.decode
        self._encode = decider.event_codec.encode

    @property
    def source(self) -> Topic:
        return self.table.source

    def process(self, records: Sequence[SourceRecord], rows: Rows | None, batch: Batch) -> None:
        assert rows is not None
        for record in records:
            try:
                self._decide(record, rows, batch)
            except BadMessage as bad:
                batch.bury(record, "message.bad", str(bad))
            except Exception as bug:
                log.exception("a decider failed; the command is a dead letter", **_place(record))
                batch.bury(record, "decider.failed", f"{type(bug).__name__}: {bug}")

    def _decide(self, record: SourceRecord, rows: Rows, batch: Batch) -> None:
        key, command = _keyed(record, self._decode(record.value))
        row = rows.get(key) or self.decider.initial_row
        if record.offset <= row.offset:
            return  # this row already holds it
        done = step(self.decider, row, command, record.offset)
        if not done.repeated:
            rows.changed[key] = done.row
        for event in done.events:
            batch.write(self.events.name, key, self._encode(event), record.partition)
        batch.outcomes.append((command.aggregate_id, done.outcome))


def _keyed(record: SourceRecord, command: CommandEnvelope[Any]) -> tuple[bytes, CommandEnvelope[Any]]:
    key = command.aggregate_id.encode()
    if record.key != key:
        raise BadMessage(f"the key {record.key!r} is not the aggregate id {command.aggregate_id!r}")
    return key, command


def _place(record: SourceRecord) -> dict[str, object]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}
