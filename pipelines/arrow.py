"""Rows in a Python worker, from and to the Arrow batches that Spark exchanges with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_ROWS_A_BATCH = 10_000
_TYPES = {
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<binary>": pa.list_(pa.binary()),
}


def schema_of(columns: str) -> pa.Schema:
    """columns: as Spark writes them, "name type, name type, …"."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in map(str.split, columns.split(", "))])


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def by_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Each batch, cut where the column `partition` changes."""
    for batch in batches:
        runs, start = pc.run_end_encode(batch.column("partition")), 0
        for partition, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield partition, batch.slice(start, end - start)
            start = end


def as_batches(rows: Iterable[tuple[Any, ...]], columns: str) -> Iterator[pa.RecordBatch]:
    """columns: as in `schema_of`, in the order of a row."""
    return in_batches(rows, schema_of(columns))


def in_batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    waiting = iter(rows)
    while chunk := list(islice(waiting, _ROWS_A_BATCH)):
        by_column = zip(*chunk, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(by_column, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
