"""Where results go: compacted topics, which a table can be fed from like any other."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from shared.kafka.access import spark_options
from shared.topology import Topic, Topology

REVENUE = Topic("insights.revenue.v1", cleanup="compact")
RETENTION = Topic("insights.retention.v1", cleanup="compact")
SEGMENTS = Topic("insights.segments.v1", cleanup="compact")
SKUS = Topic("insights.skus.v1", cleanup="compact")
BASKETS = Topic("insights.baskets.v1", cleanup="compact")
TOPOLOGY = Topology("insights", topics=(REVENUE, RETENTION, SEGMENTS, SKUS, BASKETS))


def as_records(results: DataFrame, *key: str) -> DataFrame:
    """key: the key columns joined by a slash; value: every column as JSON. A later record replaces an earlier one."""
    name = F.concat_ws("/", *(F.col(column).cast("string") for column in key))
    return results.select(name.alias("key"), F.to_json(F.struct("*")).alias("value"))


def write(results: DataFrame, bootstrap: str, topic: Topic, *key: str) -> None:
    """Appends a batch of results to `topic`."""
    _to_kafka(as_records(results, *key).write, bootstrap, topic).save()


def follow(results: DataFrame, bootstrap: str, topic: Topic, checkpoint: str, *key: str) -> None:
    """Appends what a stream changes, up to what its source holds now; goes on where `checkpoint` says."""
    stream = as_records(results, *key).writeStream.outputMode("update").trigger(availableNow=True)
    query = _to_kafka(stream, bootstrap, topic).option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


def _to_kafka(writer: Any, bootstrap: str, topic: Topic) -> Any:
    options = spark_options(bootstrap) | {"kafka.acks": "all", "kafka.enable.idempotence": "true"}
    return writer.format("kafka").options(**options).option("topic", topic.name)
