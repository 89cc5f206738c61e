"""Records of a view's source that are in no row: parked by the engine, discarded or skipped by an operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from pipelines.catalog import FoldedTable
from pipelines.sources import RECORDS, Batches, Flow
from shared.es.row import RowCodec
from shared.kafka.history import History, Positions
from shared.kafka.spans import read_all
from shared.kafka.wishes import wishes
from shared.parking import Parked, partition_of_id

Place = tuple[int, int]
"""Partition and offset."""

_CODEC: RowCodec[Parked] = RowCodec(Parked)


def parked_keys(history: History, table: FoldedTable) -> list[Parked]:
    """What waits before it can go into `table`, a key each. The engine parks under the table's name."""
    changelog = table.topology.changelog(table.topology.parked).name
    rows = {key: value for _, key, value in read_all(history, changelog)}
    states = (_CODEC.decode(row).state for row in rows.values() if row is not None)
    return [parked for parked in states if parked.processor == table.table.name]


class Counted(NamedTuple):
    """Which records of its source a view is of: those from `starts` on, by partition, that no operator discarded."""

    starts: Positions
    discarded: tuple[Place, ...]


def counted(history: History, table: FoldedTable) -> Counted:
    """As the view was last computed: `reprocess` reads again what was discarded before, and may begin later."""
    starts: Positions = {}
    discarded: list[Place] = []
    for wish in wishes(history, table.topology):
        with suppress(ValueError):  # its id names no partition
            partition = partition_of_id(wish.id)
            if wish.offset is None or not wish.id.startswith(f"{table.table.name}/"):
                continue
            if wish.action == "discard":
                discarded.append((partition, wish.offset))
            if wish.action == "reprocess":
                starts[partition] = wish.offset
                discarded = [place for place in discarded if place[0] != partition]
    return Counted(starts, tuple(discarded))


def within(records: Flow, counted: Counted) -> Flow:
    """The records that count, in the same order."""
    return records.then(partial(_counted, counted), RECORDS) if counted.starts or counted.discarded else records


def without(records: Flow, places: Iterable[Place]) -> Flow:
    """The other records, in the same order."""
    return within(records, Counted({}, tuple(places)))


def _counted(counted: Counted, batches: Batches) -> Iterator[pa.RecordBatch]:
    discarded = set(counted.discarded)
    for batch in batches:
        places = zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
        kept = [place[1] >= counted.starts.get(place[0], 0) and place not in discarded for place in places]
        yield batch.filter(pa.array(kept, pa.bool_()))
