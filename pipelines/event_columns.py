"""Events as columns: decoded and upcast by the service's own codec, for Spark's own functions to count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pydantic_core import to_json
from pyspark.sql import DataFrame

from pipelines.arrow import as_batches, rows_of
from pipelines.catalog import FoldedTable, table_in
from shared.domain.errors import BadMessage

EVENT_COLUMNS = "aggregate_id string, sequence long, type string, occurred_at timestamp, data string"
"""data: the event in its current version, as JSON. Event time is `occurred_at`."""


def event_columns(records: DataFrame, table: FoldedTable) -> DataFrame:
    """EVENT_COLUMNS of a batch or a stream of records; all null for one that is no event, which `parity` reports."""
    return records.select("value").mapInArrow(partial(_decoded, table.package, table.table.name), EVENT_COLUMNS)


def _decoded(package: str, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    decode = table_in(package, name).pure.event_codec.decode

    def rows() -> Iterator[tuple[Any, ...]]:
        for (value,) in rows_of(batches):
            try:
                event = decode(value)
            except BadMessage:
                yield None, None, None, None, None
            else:
                data = to_json(event.data).decode()
                yield event.aggregate_id, event.sequence, event.type, event.occurred_at, data

    return as_batches(rows(), EVENT_COLUMNS)
