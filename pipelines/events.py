"""All of a topic up to fixed offsets, wherever it is by now: in the topic, or in the archive and the topic's tail."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipelines import sources
from pipelines.archive import Archive
from pipelines.sources import Flow
from shared.domain.errors import OnefoldError
from shared.kafka.brokers import Brokers, Positions

_TASKS_A_PARTITION = 4  # so that few Kafka partitions hash to the same task


class HistoryIncomplete(OnefoldError):
    """Some records are neither in the topic nor in the archive.

    Operator action: name the archive that has them with --archive; without one they are lost.
    """


def records_below(
    spark: SparkSession,
    brokers: Brokers,
    topic: str,
    ends: Positions,
    archive: Archive | None,
    begins: Positions | None = None,
) -> Flow:
    """Every committed record below `ends`, from the partitions in it. begins: by partition, before which no record is
    needed; some may be given all the same.

    Raises HistoryIncomplete, AnotherLog, ArchiveRestored or BrokersUnavailable.
    """
    first = {partition: start for partition, start in brokers.starts(topic).items() if partition in ends}
    archived = archive.compared(brokers)[0] if archive else {}  # though the topic may have all: it may be another
    needed = begins or {}
    if all(start <= needed.get(partition, 0) for partition, start in first.items()):
        return sources.topic(spark, brokers.bootstrap, topic, first, ends)
    reached = {partition: max(archived.get(partition, 0), needed.get(partition, 0)) for partition in first}
    for partition, start in first.items():
        if reached[partition] < start:
            missing = f"{topic}, partition {partition}: offsets {reached[partition]} to {start - 1}"
            raise HistoryIncomplete(f"{missing} are not in the topic any more, and not in an archive that was named")
    assert archive is not None
    starts = {partition: min(reached[partition], end) for partition, end in ends.items()}
    tail = sources.topic(spark, brokers.bootstrap, topic, starts, ends).frame
    archived_of = archive.records().where(F.col("partition").isin(list(starts)))  # files without them are skipped
    kept = archived_of.where(F.col("offset") < sources.at_partition(starts))  # it may grow
    both = kept.select(*tail.columns).unionByName(tail)
    tasks = _TASKS_A_PARTITION * len(first)
    return Flow(both.repartition(tasks, "partition").sortWithinPartitions("partition", "offset"))
