"""Records into a topic, rows into a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from shared.domain.errors import OnefoldError
from shared.kafka.access import spark_options
from shared.kafka.producer import MAX_RECORD_BYTES


class FolderNotShared(OnefoldError):
    """Rows that Spark wrote are not in their folder: its executors have that folder on disks of their own.

    Operator action: name a folder that this machine and every executor share, or do without --master.
    """


def to_topic(writer: Any, bootstrap: str, topic: str) -> Any:
    """The writer of a batch or a stream, set to lose and repeat no record; the caller saves or starts it."""
    safe = {"kafka.acks": "all", "kafka.enable.idempotence": "true", "kafka.max.request.size": str(MAX_RECORD_BYTES)}
    options = spark_options(bootstrap) | safe
    return writer.format("kafka").options(**options).option("topic", topic)


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
