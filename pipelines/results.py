"""Where results go: compacted topics, which a table can be fed from like any other."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from pipelines.sinks import to_topic
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
    to_topic(as_records(results, *key).write, bootstrap, topic.name).save()


def follow(results: DataFrame, bootstrap: str, topic: Topic, checkpoint: str, *key: str) -> None:
    """Appends what a stream changes, up to what its source holds now; goes on where `checkpoint` says."""
    stream = as_records(results, *key).writeStream.outputMode("update").trigger(availableNow=True)
    query = to_topic(stream, bootstrap, topic.name).option("checkpointLocation", checkpoint).start()
    query.awaitTermination()
