"""History as raw records: from a topic between fixed offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipelines.arrow import rows_of, schema_of
from shared.kafka.access import client_config, spark_options
from shared.kafka.brokers import Brokers
from shared.kafka.spans import Chunk, Span, read
from shared.runtime.positions import Place

RECORDS = "partition int, offset long, timestamp timestamp, key binary, value binary"
"""The columns of every source. (partition, offset) is unique within a topic."""

_SCHEMA = schema_of(RECORDS)

Batches = Iterable[pa.RecordBatch]
Step = Callable[[Batches], Iterator[pa.RecordBatch]]
"""What a Python worker makes of the batches of one Spark partition."""


class Flow:
    """Arrow batches, and what one Python worker makes of them, step by step: the JVM only gets the result.

    If it carries records, one Spark partition holds whole Kafka partitions, each in the order of its offsets.
    """

    def __init__(self, frame: DataFrame, steps: Sequence[Step] = (), schema: str = RECORDS) -> None:
        self._given = frame
        self._steps = steps
        self._schema = schema

    def then(self, step: Step, schema: str) -> Flow:
        """schema: of what `step` returns."""
        return Flow(self._given, (*self._steps, step), schema)

    @property
    def frame(self) -> DataFrame:
        return self._given.mapInArrow(partial(_through, self._steps), self._schema) if self._steps else self._given


def _through(steps: Sequence[Step], batches: Batches) -> Batches:
    return reduce(lambda given, step: step(given), steps, batches)


def topic(
    spark: SparkSession,
    bootstrap: str,
    name: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    tasks: int = 1,
) -> Flow:
    """Committed records from `starts` up to, not including, `ends`: RECORDS, one Spark partition to each of theirs.

    tasks: at least so many, if there are as many offsets; a partition is then in several, out of order.
    """
    filled = [(number, start, ends[number]) for number, start in starts.items() if start < ends[number]]
    each = max(1, -(-sum(end - start for _, start, end in filled) // tasks)) if tasks > 1 else None
    spans = [
        Span(Place(name, number), first, min(first + each, end) if each else end)
        for number, start, end in filled
        for first in range(start, end, each or end - start)
    ]
    numbers = spark.range(0, len(spans), 1, max(1, len(spans)))
    return Flow(numbers, [partial(_read, client_config(bootstrap), spans)])


def _read(client: Mapping[str, Any], spans: Sequence[Span], numbers: Batches) -> Iterator[pa.RecordBatch]:
    for (number,) in rows_of(numbers):
        for chunk in read(client, spans[number]):
            yield _batch(spans[number].place.number, chunk)


def _batch(partition: int, chunk: Chunk) -> pa.RecordBatch:
    count = len(chunk.offsets)
    columns = [
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(chunk.offsets, pa.int64()),
        pa.array(chunk.timestamps, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        pa.array(chunk.keys, pa.binary()),
        pa.array(chunk.values, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def of_keys(keys: Sequence[bytes], batches: Batches) -> Iterator[pa.RecordBatch]:
    """A step of a Flow: the records of these keys."""
    wanted = pa.array(keys, pa.binary())
    for batch in batches:
        yield batch.filter(pc.is_in(batch.column("key"), value_set=wanted))


def whole(spark: SparkSession, brokers: Brokers, name: str) -> Flow:
    """Everything that has been committed so far."""
    return between(spark, brokers, name, spans(brokers, name))


def between(spark: SparkSession, brokers: Brokers, name: str, spans: Mapping[int, tuple[int, int]]) -> Flow:
    starts, ends = ({number: span[end] for number, span in spans.items()} for end in (0, 1))
    return topic(spark, brokers.bootstrap, name, starts, ends)


def spans(brokers: Brokers, name: str) -> dict[int, tuple[int, int]]:
    """What each partition has: its first offset, and the one after its last committed record."""
    starts, ends = brokers.starts(name), brokers.settled_ends(name)
    return {number: (starts[number], end) for number, end in ends.items()}


def field(name: str) -> Column:
    """A column of that name: a field of the envelopes, as text, null where there is none."""
    return F.get_json_object(F.col("value").cast("string"), f"$.{name}").alias(name)


def at_partition(positions: Mapping[int, int]) -> Column:
    """The position of the record's partition, null if it has none. positions: not empty."""
    return F.create_map(*(F.lit(number) for pair in positions.items() for number in pair))[F.col("partition")]


def latest(changelog: Flow) -> DataFrame:
    """The last value of each key in each partition, without the deleted ones. key: binary, row: binary."""
    last = changelog.frame.groupBy("partition", "key").agg(F.max_by("value", "offset").alias("row"))
    return last.where(F.col("row").isNotNull())


def stream(spark: SparkSession, bootstrap: str, name: str, at_once: int) -> DataFrame:
    """The same columns, from the first record on and for ever, as a streaming DataFrame. at_once: records a batch."""
    records = (
        spark.readStream.format("kafka")
        .option("maxOffsetsPerTrigger", at_once)
        .options(**spark_options(bootstrap))
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", name)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .load()
    )
    return records.select("partition", "offset", "timestamp", "key", "value")
