"""Records into a topic, rows into a folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipelines.arrow import as_batches, rows_of
from shared.domain.errors import OnefoldError
from shared.kafka.access import client_config, spark_options
from shared.kafka.appending import Appending, appending_config
from shared.kafka.brokers import Brokers, Positions
from shared.kafka.producer import MAX_RECORD_BYTES
from shared.kafka.transactions import producer_id
from shared.runtime.positions import Place

_APPENDED = "appended long"


class FolderNotShared(OnefoldError):
    """Rows that Spark wrote are not in their folder: its executors have that folder on disks of their own.

    Operator action: name a folder that this machine and every executor share, or do without --master.
    """


def to_topic(writer: Any, bootstrap: str, topic: str) -> Any:
    """The writer of a batch or a stream, set to lose and repeat no record; the caller saves or starts it."""
    safe = {"kafka.acks": "all", "kafka.enable.idempotence": "true", "kafka.max.request.size": str(MAX_RECORD_BYTES)}
    options = spark_options(bootstrap) | safe
    return writer.format("kafka").options(**options).option("topic", topic)


def append_once(records: DataFrame, bootstrap: str, topic: str, group: str) -> None:
    """Appends (partition, key, value), each once, however often Spark runs a task.

    records: each partition whole within one of Spark's, and in the same order whenever it is computed. Nobody else may
    write to the topic meanwhile. group: the service's, whose name its principal's transactional ids begin with.
    """
    ends = Brokers(bootstrap).settled_ends(topic)
    # of this process: others may have no settings of their own
    append = partial(_append, appending_config(bootstrap), client_config(bootstrap), topic, group, ends)
    records.mapInArrow(append, _APPENDED).agg(F.sum("appended")).collect()


def _append(
    config: Mapping[str, Any],
    client: Mapping[str, Any],
    topic: str,
    group: str,
    ends: Positions,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for number, rows in groupby(rows_of(batches), key=itemgetter(0)):
        transactional = {**config, "transactional.id": producer_id(group, f"backfill-{number}")}
        appending = Appending(transactional, client, Place(topic, number), ends[number])
        yield from as_batches([(appending.all(row[1:] for row in rows),)], _APPENDED)


def to_folder(rows: DataFrame, target: Path, *by: str) -> None:
    """Writes Parquet; `target` exists only once all rows have been seen in it. Raises FolderNotShared.

    by: columns, for each of whose values a folder of its own is made.
    """
    unproven, written = target.with_name(f"_{target.name}"), Observation()
    observed = rows.observe(written, F.count(F.lit(1)).alias("rows"))
    observed.write.mode("overwrite").partitionBy(*by).parquet(str(unproven))
    seen = ds.dataset(unproven, format="parquet").count_rows()
    if seen != written.get["rows"]:
        raise FolderNotShared(
            f"{seen:,} of {written.get['rows']:,} rows that executors wrote are in {target.parent}: "
            "name a folder that this machine and every executor share"
        )
    unproven.rename(target)


def refuse_unshared(spark: SparkSession, target: str) -> None:
    """For before a Delta table is written to `target`: the driver writes its log, the executors its files.

    Raises FolderNotShared. target: a folder or a URI; what is on no machine's own disk is shared by all.
    """
    path = spark._jvm.org.apache.hadoop.fs.Path(target)
    place = path.getFileSystem(spark._jsc.hadoopConfiguration()).makeQualified(path).toUri()
    if place.getScheme() != "file":
        return
    probe = Path(place.getPath()).with_name(f"_shared_{uuid4().hex}")
    tasks = spark.sparkContext.defaultParallelism  # one for each core, so one at least for each executor
    try:
        to_folder(spark.range(tasks, numPartitions=tasks), probe)
    finally:
        for each in (probe, probe.with_name(f"_{probe.name}")):
            shutil.rmtree(each, ignore_errors=True)
