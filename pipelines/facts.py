"""Events as columns: decoded and upcast by the service's own codec, for Spark's own functions to count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pydantic_core import to_json
from pyspark.sql import DataFrame

from pipelines.catalog import FoldedTable, table_of
from shared.es.errors import BadMessage

FACTS = "aggregate_id string, sequence long, type string, occurred_at timestamp, data string"
"""data: the event in its current version, as JSON. Event time is `occurred_at`."""

_SCHEMA = pa.schema(
    [
        ("aggregate_id", pa.string()),
        ("sequence", pa.int64()),
        ("type", pa.string()),
        ("occurred_at", pa.timestamp("us", "UTC")),
        ("data", pa.string()),
    ]
)


def facts(records: DataFrame, table: FoldedTable) -> DataFrame:
    """FACTS of a batch or a stream of records. What is no event is left out; the audit tells of it."""
    return records.select("value").mapInArrow(partial(_decoded, table.service, table.table.name), FACTS)


def _decoded(service: str, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    decode = table_of(service, name).pure.event_codec.decode
    for batch in batches:
        rows = []
        for value in batch.column("value").to_pylist():
            try:
                event = decode(value)
            except BadMessage:
                continue
            data = to_json(event.data).decode()
            rows.append((event.aggregate_id, event.sequence, event.type, event.occurred_at, data))
        columns = zip(*rows, strict=True) if rows else [()] * len(_SCHEMA)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
        )
