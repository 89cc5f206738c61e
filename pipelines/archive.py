"""A service's events in a Delta table: a copy that outlives the topic's retention.

Exactly once by (topic, partition, offset), however often a run dies: the records of a run and the offsets they reach
become visible in one commit of Delta's log, and Delta refuses a run that starts where another did.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipelines import sources
from pipelines.sinks import refuse_unshared
from shared.domain.errors import OnefoldError
from shared.kafka.brokers import Brokers, Positions

LOG_KEPT = "interval 366 days"  # a commit and its checkpoint, else there are more with each run, and ever larger ones
KEPT_HOURS = 7 * 24  # files that compaction replaced are kept so long, for readers that have begun
_SHOWN = 5
_ENDS, _TOPIC = "onefold.ends", "onefold.topic"
_RECENT = 20  # commits, among which the last run's usually is: reading all takes longer with each run


class ArchiveBehind(OnefoldError):
    """The topic's retention removed records before they were archived: history has a hole.

    Operator action: restore the records from a backup of the brokers. Then archive more often than the topic's
    `retention.ms`, or set that to -1.
    """


class AnotherLog(OnefoldError):
    """The topic is not the one in the archive: it was recreated, or is a second cluster's, and its offsets mean others.

    Operator action: archive it to another folder, and name that one with --archive. The former one remains the history
    of the former topic.
    """


class ArchiveRestored(OnefoldError):
    """A RESTORE has put the archive back to before its last run: records are missing that were archived.

    Operator action: `RESTORE` it to the version that the message names, or archive to another folder.
    """


class ArchivedElsewhere(OnefoldError):
    """Another run has archived the same records; this one added nothing.

    Operator action: none, but let only one run at a time.
    """


@dataclass(frozen=True, slots=True)
class Archived:
    """What one run added. ends: where the next run goes on."""

    records: int
    ends: Positions


class Archive:
    """The Delta table of one service's topic of events, in `root`/`service`."""

    def __init__(self, spark: SparkSession, root: str, service: str, topic: str) -> None:
        self.path = f"{root.rstrip('/')}/{service}"
        self.topic = topic
        self._spark = spark

    def exists(self) -> bool:
        return bool(DeltaTable.isDeltaTable(self._spark, self.path))

    def table(self) -> DeltaTable:
        return DeltaTable.forPath(self._spark, self.path)

    def ends(self) -> Positions:
        """The offset after the last archived one of each partition; empty when there is no archive.

        Raises ArchiveRestored.
        """
        return self._ends_in(self._noted())

    def compared(self, brokers: Brokers) -> tuple[Positions, Positions, str]:
        """`ends`, then the topic's, none of which is before them, and its id.

        Raises ArchiveRestored, AnotherLog or BrokersUnavailable.
        """
        noted = self._noted()
        archived, ends = self._ends_in(noted), brokers.settled_ends(self.topic)
        (topic_id,) = brokers.topic_ids([self.topic])
        if archived and (known := noted.get(_TOPIC, topic_id)) != topic_id:
            made = f"{self.topic} was made again since it was archived in {self.path}"
            fix = "archive it to another folder, and name that one with --archive"
            raise AnotherLog(f"{made}: its id was {known}, and is {topic_id}; fix: {fix}")
        if ahead := {p: (ends.get(p, 0), end) for p, end in archived.items() if ends.get(p, 0) < end}:
            raise AnotherLog(f"{self.topic} no longer has what is archived of it in {self.path}: {_spans(ahead)}")
        return archived, ends, topic_id

    def _ends_in(self, noted: Mapping[str, Any]) -> Positions:
        if noted:
            return {int(partition): end for partition, end in noted[_ENDS][self.topic].items()}
        if not self.exists():
            return {}
        last = self.records().groupBy("partition").agg((F.max("offset") + 1).alias("end"))
        return {row.partition: row.end for row in last.collect()}

    def _noted(self) -> dict[str, Any]:
        """What the last run noted; empty when there is no archive. Raises ArchiveRestored."""
        if not self.exists():
            return {}
        commits = self._commits(_RECENT)
        if not any(self._note(each) for each in commits) or any(each.operation == "RESTORE" for each in commits):
            commits = self._commits()
        last = next(filter(self._note, commits), None)
        below = commits[0].version
        for commit in commits:
            if commit.version > below:
                continue
            if commit.operation == "RESTORE":
                below = int(commit.operationParameters.get("version") or -1)
            elif note := self._note(commit):
                if commit == last:
                    return note
                break
        if last is None:
            return {}
        ends = ", ".join(f"partition {number}: {end}" for number, end in self._note(last)[_ENDS][self.topic].items())
        fix = f"RESTORE TABLE delta.`{self.path}` TO VERSION AS OF {last.version}, or archive to another folder"
        raise ArchiveRestored(f"{self.path} was restored to before offsets of {self.topic}, {ends}; fix: {fix}")

    def _note(self, commit: Row) -> dict[str, Any]:
        """Empty if it is none of a run for this topic."""
        note: dict[str, Any] = json.loads(commit.userMetadata or "{}")
        return note if self.topic in note.get(_ENDS, {}) else {}

    def version(self) -> int:
        """Of the table: every change makes another."""
        return int(self._commits(1)[0].version)

    def records(self) -> DataFrame:
        """Everything archived of the topic, in no order: sources.RECORDS and `occurred_on`."""
        return self._spark.read.format("delta").load(self.path).where(F.col("topic") == self.topic).drop("topic")

    def extend(self, brokers: Brokers) -> Archived:
        """Adds the topic's records that are not in the archive yet.

        Raises ArchiveBehind, ArchiveRestored, AnotherLog, FolderNotShared or BrokersUnavailable.
        """
        first = brokers.starts(self.topic)
        before, ends, topic_id = self.compared(brokers)
        starts = {partition: before.get(partition, 0) for partition in ends}
        if lost := {p: (starts[p], first[p]) for p in ends if starts[p] < first[p]}:
            raise ArchiveBehind(f"{self.topic}: offsets were removed before they were archived: {_spans(lost)}")
        if starts == ends:
            return Archived(0, ends)
        refuse_unshared(self._spark, self.path)
        try:
            self.append(self.between(brokers, starts, ends), starts, ends, topic_id)
        except Exception as error:  # delta-spark 4.0.0 was published without its module of exceptions
            if "ConcurrentTransactionException" not in str(error):
                raise
            raise ArchivedElsewhere(f"{self.path} was extended by another run meanwhile") from error
        if self.ends() != ends:
            raise ArchivedElsewhere(f"{self.path} was extended by another run meanwhile")
        return Archived(self._added(), ends)

    def between(self, brokers: Brokers, starts: Positions, ends: Positions) -> DataFrame:
        """In no order: each partition is read by several tasks."""
        tasks = self._spark.sparkContext.defaultParallelism
        return sources.topic(self._spark, brokers.bootstrap, self.topic, starts, ends, tasks).frame

    def append(self, records: DataFrame, starts: Positions, ends: Positions, topic_id: str | None = None) -> None:
        """Adds `records`, which are all those from `starts` to `ends`, unless another run from `starts` has."""
        note = {_ENDS: {self.topic: ends}} | ({_TOPIC: topic_id} if topic_id else {})
        day = F.to_date(F.coalesce(F.try_to_timestamp(sources.field("occurred_at")), F.col("timestamp")))
        rows = records.select(F.lit(self.topic).alias("topic"), "*", day.alias("occurred_on"))
        (
            rows.hint("rebalance", "occurred_on")
            .sortWithinPartitions("occurred_on", "partition", "offset")
            .write.format("delta")
            .mode("append")
            .partitionBy("occurred_on")
            .option("userMetadata", json.dumps(note))
            .option("delta.logRetentionDuration", LOG_KEPT)  # if no note is left in it, rows say how far all is
            .option("delta.setTransactionRetentionDuration", LOG_KEPT)  # those of such a run may begin before it did
            # Delta lets only one of two runs from the same start commit, and remembers the last one
            .option("txnAppId", self.topic)
            .option("txnVersion", sum(starts.values()))
            .save(self.path)
        )

    def _added(self) -> int:
        metrics = self._commits(1)[0].operationMetrics
        return int(metrics.get("numOutputRows", 0))

    def _commits(self, limit: int | None = None) -> list[Row]:
        commits: list[Row] = self.table().history(limit).collect()
        return commits

    def compact(self) -> tuple[int, int]:
        """(files replaced, files that replace them). Also deletes files replaced more than KEPT_HOURS ago."""
        table = self.table()
        metrics = table.optimize().executeCompaction().select("metrics.*").first()
        table.vacuum(KEPT_HOURS)
        return metrics.numFilesRemoved, metrics.numFilesAdded

    def problems(self, brokers: Brokers) -> Iterator[str]:
        """What is wrong with the archive, a line each: records that are there twice, or differ from the log."""
        yield from self._repeated()
        yield from self._unlike_the_log(brokers)

    def _repeated(self) -> Iterator[str]:
        times = self.records().groupBy("partition", "offset").count().where("count > 1")
        for row in times.orderBy("partition", "offset").limit(_SHOWN).collect():
            yield f"{self.topic}, partition {row.partition}, offset {row.offset}: there {row['count']} times"

    def _unlike_the_log(self, brokers: Brokers) -> Iterator[str]:
        ends, first = self.ends(), brokers.starts(self.topic)
        log = self.between(brokers, first, {p: max(ends.get(p, 0), start) for p, start in first.items()})
        archived = self.records().where(F.col("offset") >= sources.at_partition(first))
        place, digest = ["partition", "offset"], F.xxhash64("key", "value")
        both = log.select(*place, digest.alias("log")).join(
            archived.select(*place, digest.alias("archive")), place, "full_outer"
        )
        for row in both.where("NOT log <=> archive").orderBy(*place).limit(_SHOWN).collect():
            problem = "not archived" if row.archive is None else "not in the log" if row.log is None else "altered"
            yield f"{self.topic}, partition {row.partition}, offset {row.offset}: {problem}"

    def broken_sequences(self) -> Iterator[str]:
        """The keys whose events are not numbered 1, 2, 3 … without a gap, a line each."""
        sequence = sources.field("sequence").cast("long")
        ends = (
            self.records()
            .groupBy("key")
            .agg(F.count("*").alias("events"), F.min(sequence).alias("first"), F.max(sequence).alias("last"))
        )
        for row in ends.where("NOT (first <=> 1 AND last <=> events)").limit(_SHOWN).collect():
            key = bytes(row.key or b"").decode(errors="replace")
            yield f"{key}: {row.events} events, numbered from {row.first} to {row.last}"


def _spans(offsets: Mapping[int, tuple[int, int]]) -> str:
    return ", ".join(f"partition {p}: {start} to {end - 1}" for p, (start, end) in offsets.items())
