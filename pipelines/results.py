"""Where results go: a topic of events, which a table can be fed from like any other."""

from __future__ import annotations

from collections import Counter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from pipelines.sinks import to_topic
from shared.domain.ids import AGGREGATE_ID_MAX_BYTES
from shared.topology.topics import Topic, Topology

RESULTS = Topic("insights.results.v1")
TOPOLOGY = Topology("insights", topics=(RESULTS,))

_BATCHES = 100_000  # of a run, whose counts are added up
LATE = "late"  # at least so many rows came later than a stream's watermark: those of a group may be one


def _as_records(results: DataFrame, kind: str, *key: str) -> DataFrame:
    """key: the kind and the key columns, `retention:1997-01-01:3`; value: an event that holds every column.

    A later record of a key replaces an earlier one. Each is the first event of its own, so its sequence is 1.
    A key that would be longer than an id may be has a hash in place of its columns.
    """
    of = F.concat_ws(":", *(F.col(column).cast("string") for column in key))
    fits = F.octet_length(of) < AGGREGATE_ID_MAX_BYTES - len(kind)
    name = F.concat_ws(":", F.lit(kind), F.when(fits, of).otherwise(F.sha2(of, 256)))
    data = F.struct(F.lit(kind).alias("kind"), F.struct("*").alias("figures"))
    event_id = F.sha2(F.to_json("data"), 256)
    envelope = F.struct(
        event_id.alias("event_id"),
        F.lit("insights.counted").alias("type"),
        F.lit(1).alias("schema_version"),
        F.col("key").alias("aggregate_id"),
        F.lit(1).alias("sequence"),
        F.current_timestamp().alias("occurred_at"),
        event_id.alias("correlation_id"),
        "data",
    )
    return results.select(name.alias("key"), data.alias("data")).select("key", F.to_json(envelope).alias("value"))


def write(results: DataFrame, bootstrap: str, kind: str, *key: str) -> None:
    """Appends a batch of results."""
    to_topic(_as_records(results, kind, *key).write, bootstrap, RESULTS.name).save()


def follow(results: DataFrame, bootstrap: str, checkpoint: str, kind: str, *key: str) -> Counter[str]:
    """Appends what a stream changes, up to what its source holds now; resumes from `checkpoint`.

    Returns the totals of what was observed on the way, and LATE.
    """
    results.sparkSession.conf.set(
        "spark.sql.streaming.numRecentProgressUpdates", _BATCHES
    )  # else those before are lost
    stream = _as_records(results, kind, *key).writeStream.outputMode("update").trigger(availableNow=True)
    query = to_topic(stream, bootstrap, RESULTS.name).option("checkpointLocation", checkpoint).start()
    query.awaitTermination()
    progress = query.recentProgress
    found = (row.asDict() for done in progress for row in done.observedMetrics.values())
    late = sum(each.numRowsDroppedByWatermark for done in progress for each in done.stateOperators)
    return sum(map(Counter, found), Counter({LATE: late}))
