"""History as DataFrames of raw records: from a topic between fixed offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from shared.kafka.access import spark_options
from shared.kafka.history import History

RECORDS = "partition int, offset long, timestamp timestamp, key binary, value binary"
"""The columns of every source. (partition, offset) is unique within a topic."""

_FETCH_BYTES = 8 << 20


def topic(
    spark: SparkSession, bootstrap: str, name: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> DataFrame:
    """Committed records from `starts` up to, not including, `ends`.

    One Spark partition holds one Kafka partition, in the order of its offsets.
    """
    spans = {partition: (start, ends[partition]) for partition, start in starts.items() if start < ends[partition]}
    if not spans:
        return spark.createDataFrame([], RECORDS)
    records = (
        spark.read.format("kafka")
        .options(**spark_options(bootstrap))
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.max.partition.fetch.bytes", _FETCH_BYTES)
        .option("assign", json.dumps({name: sorted(spans)}))
        .option("startingOffsets", json.dumps({name: {str(p): start for p, (start, _) in spans.items()}}))
        .option("endingOffsets", json.dumps({name: {str(p): end for p, (_, end) in spans.items()}}))
        .option("failOnDataLoss", "true")
        .load()
    )
    return records.select("partition", "offset", "timestamp", "key", "value")


def whole(spark: SparkSession, history: History, name: str) -> DataFrame:
    """Everything that was committed by now."""
    return topic(spark, history.bootstrap, name, history.starts(name), history.settled_ends(name))


def latest(changelog: DataFrame) -> DataFrame:
    """The last value of each key, without the deleted ones. key: binary, row: binary."""
    last = changelog.groupBy("key").agg(F.max_by("value", "offset").alias("row"))
    return last.where(F.col("row").isNotNull())


def stream(spark: SparkSession, bootstrap: str, name: str) -> DataFrame:
    """The same columns, from the first record on and for ever, as a streaming DataFrame."""
    records = (
        spark.readStream.format("kafka")
        .options(**spark_options(bootstrap))
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", name)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .load()
    )
    return records.select("partition", "offset", "timestamp", "key", "value")
