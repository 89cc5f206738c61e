"""Some keys of one partition, at random: what can be compared every few minutes, however long all of history is."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from heapq import nsmallest
from typing import NamedTuple, TypeVar
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.sources import RECORDS, Batches, Flow

_SALT_BYTES = 8
_ALL = 1 << 32

T = TypeVar("T")


class Sample(NamedTuple):
    """The keys in the partition `number` whose hash is below `below`: those without a row, too."""

    number: int
    salt: bytes
    below: int = _ALL

    def of(self, by_partition: Mapping[int, T]) -> dict[int, T]:
        """What there is of its partition."""
        return {number: each for number, each in by_partition.items() if number == self.number}

    def narrowed(self, keys: Iterable[bytes], count: int) -> Sample:
        """To the first `count` of these keys, and what lies between them."""
        hashes = nsmallest(count, map(self._hash, keys))
        return self._replace(below=hashes[-1] + 1) if len(hashes) == count else self

    def has(self, key: bytes) -> bool:
        return self._hash(key) < self.below

    def taken(self, records: Flow, *, clocked: bool = False) -> Flow:
        """The records of its keys. clocked: the others lose key and value instead, as the clock goes by them, too."""
        return records.then(partial(_taken, self, clocked), RECORDS)

    def _hash(self, key: bytes) -> int:
        return crc32(key, crc32(self.salt))


def sample_of(spans: Mapping[int, tuple[int, int]]) -> Sample:
    """Of a partition that has records. spans: where those of each begin and end."""
    filled = [number for number, (start, end) in spans.items() if start < end]
    return Sample(secrets.choice(filled or [0]), secrets.token_bytes(_SALT_BYTES))


def _taken(sample: Sample, clocked: bool, batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        mask = pa.array([key is not None and sample.has(key) for key in batch.column("key").to_pylist()], pa.bool_())
        if clocked:
            columns = [
                pc.if_else(mask, column, None) if name in ("key", "value") else column
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        else:
            yield batch.filter(mask)
