"""Whether a sink's table has what `rows` makes of its topic, row by row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from shared.domain.errors import NotReady
from shared.kafka.access import client_config
from shared.kafka.brokers import Brokers
from shared.kafka.spans import Chunk, Span, read
from shared.privacy.sealing import Sealer
from shared.runtime.positions import Place
from shared.sinks.database import Database, Differences, Positions
from shared.sinks.filling import opened
from shared.sinks.sink import BadRow, Changed, Sink

Tell = Callable[[int, int], None]
"""Called with how many offsets were read, and of how many."""


def check(
    sink: Sink, topic: str, database: Database, brokers: Brokers, tell: Tell, sealer: Sealer | None = None
) -> Differences:
    """Reads the whole topic, and waits for brokers and database. The sink waits while the database compares.

    sealer: of a sink that opens personal text. Raises BadRow for a record that `sinks.py` can no longer read, Fenced
    for a table that is not there, BrokersUnavailable and DatabaseUnavailable.
    """
    start, so_far = brokers.starts(topic), database.state(sink).positions
    changes = partial(_changes, sink, topic, brokers, tell, sealer)
    return database.differences(sink, changes(start, so_far), lambda now: _last(changes(so_far, now)))


def _last(changes: Iterator[Changed]) -> Changed:
    return {key: values for changed in changes for key, values in changed.items()}


def _changes(
    sink: Sink, topic: str, brokers: Brokers, tell: Tell, sealer: Sealer | None, start: Positions, end: Positions
) -> Iterator[Changed]:
    done, total = 0, sum(max(0, end[number] - start[number]) for number in end)
    for number in sorted(end):
        if start[number] >= end[number]:
            continue
        span = Span(Place(topic, number), start[number], end[number])
        for chunk in read(client_config(brokers.bootstrap), span):
            yield _changed(sink, sealer, span.place, chunk)
            tell(done + max(chunk.offsets, default=span.start) - span.start, total)
        done += span.end - span.start


def _changed(sink: Sink, sealer: Sealer | None, place: Place, chunk: Chunk) -> Changed:
    changed: Changed = {}
    offset = -1
    try:
        decoded = []
        for at, value in zip(chunk.offsets, chunk.values, strict=True):
            offset = at
            decoded.append(sink.source.decode(value))
        if sealer is not None:
            decoded = asyncio.run(opened(sink, sealer, decoded))
        for at, key, each in zip(chunk.offsets, chunk.keys, decoded, strict=True):
            offset = at
            if sink.source.passes(each):
                sink.change(changed, (key or b"").decode(), each)
    except NotReady:  # personal text can't be opened now
        raise
    except Exception as error:
        fix = "raise `version` of the sink, as its table was filled by other code"
        raise BadRow(f"{place.topic}/{place.number}@{offset}: {type(error).__name__}; fix: {fix}") from error
    return changed
