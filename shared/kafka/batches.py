"""Records as a broker keeps them in its files: at any offsets, with gaps between them, and at the time they had.

No client can write such a log: the brokers number what they are sent without a gap, and say when.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from shared.kafka.spans import WholeRecord

_BATCH_BYTES = 1 << 20
_BATCH_RECORDS = 10_000
_CRC_AT, _CHECKED_FROM = 17, 21
_LOG_APPEND_TIME = 0x08  # the broker said when, and all records of the batch have its latest time


def batches(records: Iterable[WholeRecord], start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(first offset, bytes) of batches that hold `records` and go on to `end`, where the log then ends.

    Without records there is one that is empty, as compaction leaves it. Raises OverflowError for a gap of 2**31.
    """
    before: list[WholeRecord] = []
    for each in _alike(records):
        if before:
            yield _batch(before, before[-1].offset)
        before = each
    if before:
        yield _batch(before, end - 1)
    elif start < end:
        checked = struct.pack(">hiqqqhii", _LOG_APPEND_TIME, _int32(end - 1 - start), -1, -1, -1, -1, -1, 0)
        yield start, _checked(bytearray(struct.pack(">qiiBI", start, len(checked) + 9, 0, 2, 0) + checked))


def _alike(records: Iterable[WholeRecord]) -> Iterator[list[WholeRecord]]:
    """Runs of one time, of a bounded size."""
    for _, run in groupby(records, lambda each: each.timestamp):
        some, size = list[WholeRecord](), 0
        for each in run:
            some.append(each)
            size += len(each.key or b"") + len(each.value or b"")
            if size >= _BATCH_BYTES or len(some) >= _BATCH_RECORDS:
                yield some
                some, size = [], 0
        if some:
            yield some


def _batch(records: Sequence[WholeRecord], last: int) -> tuple[int, bytes]:
    """last: the last offset that the batch stands for."""
    first = records[0].offset
    builder: Any = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 2**31 - 1)
    for offset, timestamp, key, value, headers in records:
        builder.append(offset - first, timestamp, key, value, headers)
    built = builder.build()
    struct.pack_into(">q", built, 0, first)
    struct.pack_into(">i", built, 12, 0)  # the epoch of the leader
    struct.pack_into(">hi", built, _CHECKED_FROM, _LOG_APPEND_TIME, _int32(last - first))
    return first, _checked(built)


def _checked(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, _CRC_AT, calc_crc32c(bytes(batch[_CHECKED_FROM:])))
    return bytes(batch)


def _int32(delta: int) -> int:
    if delta >= 2**31:
        raise OverflowError(f"a gap of {delta} offsets is more than a batch can hold")
    return delta
