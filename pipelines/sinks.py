"""Records into a topic, rows into a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipelines.arrow import as_batches, by_partition, rows_of, schema_of
from pipelines.sources import Batches, Flow
from shared.domain.errors import OnefoldError
from shared.kafka.access import client_config, spark_options
from shared.kafka.appending import Appending, appending_config, fence
from shared.kafka.brokers import Brokers, Positions
from shared.kafka.producer import MAX_RECORD_BYTES
from shared.kafka.transactions import producer_id
from shared.runtime.positions import Place

_APPENDED = "appended long"
_FILED = "partition int, rows long"


class FolderNotShared(OnefoldError):
    """Rows that Spark wrote are not in their folder: its executors have that folder on disks of their own.

    Operator action: name a folder that this machine and every executor share, or do without --master.
    """


def to_topic(writer: Any, bootstrap: str, topic: str) -> Any:
    """The writer of a batch or a stream, set to lose and repeat no record; the caller saves or starts it."""
    safe = {"kafka.acks": "all", "kafka.enable.idempotence": "true", "kafka.max.request.size": str(MAX_RECORD_BYTES)}
    options = spark_options(bootstrap) | safe
    return writer.format("kafka").options(**options).option("topic", topic)


def final_ends(bootstrap: str, topic: str, group: str) -> Positions:
    """Behind all that was appended to the topic, once tasks of a run that died, which may live on elsewhere, can append
    no more."""
    brokers = Brokers(bootstrap)
    fence(bootstrap, (_append_id(group, number) for number in range(brokers.partitions(topic))))
    return brokers.settled_ends(topic)


def append_once(records: DataFrame, bootstrap: str, topic: str, group: str, ends: Positions) -> None:
    """Appends (partition, key, value), each once, however often Spark runs a task.

    records: each partition whole within one of Spark's, and in the same order whenever it is computed. ends: behind
    what they follow: from there on nobody else may write to the topic. group: the service's, whose name its principal's
    transactional ids begin with.
    """
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
        transactional = {**config, "transactional.id": _append_id(group, number)}
        appending = Appending(transactional, client, Place(topic, number), ends[number])
        yield from as_batches([(appending.all(row[1:] for row in rows),)], _APPENDED)


def _append_id(group: str, number: int) -> str:
    return producer_id(group, f"backfill-{number}")


def to_files(rows: Callable[[Sequence[int]], Flow], columns: str, folder: Path, numbers: Iterable[int]) -> None:
    """Writes a Parquet file for each of the partitions `numbers` that has none in `folder`: each is there, complete, as
    soon as its task is through. Raises FolderNotShared.

    rows: those of some partitions, by `columns`, of which the first is `partition`; one partition after the other.
    """
    missing = [number for number in numbers if not _file(folder, number).exists()]
    if not missing:
        return
    filed = rows(missing).then(partial(_filed, folder, columns), _FILED).frame.collect()
    for number in {*missing} - {each.partition for each in filed}:
        _write(folder, number, columns, [])
    told = sum(each.rows for each in filed)
    files = (_file(folder, number) for number in missing)
    seen = sum(pq.read_metadata(file).num_rows for file in files if file.exists())
    if seen != told:
        raise FolderNotShared(
            f"{seen:,} of {told:,} rows that executors wrote are in {folder.parent}: "
            "name a folder that this machine and every executor share"
        )


def _filed(folder: Path, columns: str, batches: Batches) -> Iterator[pa.RecordBatch]:
    for number, some in groupby(by_partition(batches), key=itemgetter(0)):
        yield from as_batches([(number, _write(folder, number, columns, (each for _, each in some)))], _FILED)


def _write(folder: Path, number: int, columns: str, batches: Batches) -> int:
    """How many rows there are. Another task may do the same meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    unproven, schema, rows = folder / f".{number}-{uuid4().hex}", schema_of(columns), 0
    with pq.ParquetWriter(unproven, schema) as writer:
        for batch in batches:
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))  # which may say "not null"
            rows += batch.num_rows
    unproven.replace(_file(folder, number))
    return rows


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number}.parquet"


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
        every = spark.range(tasks, numPartitions=tasks).selectExpr("CAST(id AS INT) AS partition")
        to_files(lambda _: Flow(every), "partition int", probe, range(tasks))
    finally:
        shutil.rmtree(probe, ignore_errors=True)
