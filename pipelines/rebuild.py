"""The next version of a service's tables, folded from history into the changelogs that its workers will restore.

The new version begins exactly where the old one stands: its positions are the old group's, its rows are folded up to
there, and joined rows are made of these. First every table is folded, in one job, into a file for each partition, so
that a run continues one that died, and a gap in the history stops it before anything is written. The positions come
last, with the records parked before them: without positions no worker of the new version starts. Right before them,
the old version's rows note that it has a successor: no worker of it goes on from there, so what was then checked stays
true.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from msgspec import structs
from pydantic_core import from_json, to_json
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipelines import events, folds, sources
from pipelines.archive import Archive
from pipelines.arrow import as_batches, rows_of, schema_of
from pipelines.catalog import AnyTable, FoldedTable, JoinedTable, answering_in, join_in, joins_in, table_in
from pipelines.parked import Scope, in_scope, notes, parked_in, parked_records, scope_of
from pipelines.session import code_digest
from pipelines.sinks import to_files, to_topic
from pipelines.sources import Batches, Flow
from shared.domain.errors import OnefoldError
from shared.domain.history_index import ended, ended_key, index_codec
from shared.domain.row import Row, RowCodec
from shared.kafka.brokers import Brokers, GroupIsLive, Positions
from shared.kafka.transactions import Record
from shared.operations.reprocess import Reprocessing
from shared.parking.parked import (
    BEGINS_ID,
    PARKED_CODEC,
    STOOD,
    SUPERSEDED_ID,
    Clock,
    OperatorRequest,
    clock_id,
    ended_id,
    note_of,
    note_of_clock,
    note_of_ended,
    note_of_successor,
    partition_of_id,
)
from shared.parking.requests import Begins, noted_begins, noted_topics
from shared.runtime.routes import Role
from shared.topology.policy import Policy
from shared.topology.publication import Publication
from shared.topology.topics import Topic, Topology

_ROWS = "partition int, key binary, value binary, events long, problem string"
_PLACE = ("partition", "key")
_BROKEN = pc.field("problem").is_valid()
_KEPT = pc.field("value").is_valid() | _BROKEN
_PROBLEMS_SHOWN = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AlreadyBuilt(OnefoldError):
    """This version has positions already, so workers may have gone on from them.

    Operator action: nothing if it was rebuilt; raise `version` in topology.py to compute the tables again.
    """


class NothingBefore(OnefoldError):
    """There is no previous version to begin from: its group has no position, or no changelog of a table.

    Operator action: what the message says after `fix:`. Without a position: none if the service has no events yet, for
    its workers begin by themselves, like those of version 1. Otherwise run the workers of the previous version first,
    or if the brokers have forgotten it, rebuild `--mirrored`.
    """


class HistoryBroken(OnefoldError):
    """Some key's events cannot be folded, or do not explain its row; nothing was written.

    Operator action: read the places, put `version` back, and read what `parity` says of these keys. Discard what a view
    cannot fold from its dead letters first; if it is not among them, fix the view so that it can fold it.
    """


class HistoryMoved(OnefoldError):
    """A worker of the old version ran meanwhile: the new version would decide again what it decided.

    Operator action: keep everything stopped that starts workers of the old version, then rebuild again.
    """


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the fold depends on: the results of two different plans do not fit together.

    notes: of records that are in no row of the old version. positions: of the old version, by topic. ends: of whatever
    else is read. archives: path and version of those that were named. code: the digest of the code that folds.
    """

    notes: tuple[OperatorRequest, ...]
    positions: Mapping[str, Positions]
    ends: Mapping[str, Positions]
    archives: tuple[tuple[str, int], ...]
    code: str

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, default=OperatorRequest.model_dump)


@dataclass(frozen=True, slots=True)
class Done:
    """A table, folded."""

    table: str
    rows: int
    events: int


Referred = Sequence[Mapping[bytes, bytes | None]]
"""The rows of each reference table, by key."""

Report = Callable[[Done, int, int, float], None]
"""(the table just done, how many are done, of how many, seconds since the start)"""


class Rebuild:
    """Builds `version` of `tables`, which are of one service, with the code that is here now.

    work: a folder for intermediate results. archive: gives the archive of a table's events, None where there is none.
    """

    def __init__(
        self,
        spark: SparkSession,
        brokers: Brokers,
        tables: Iterable[FoldedTable],
        version: int,
        work: Path,
        archive: Callable[[FoldedTable], Archive | None] = lambda _: None,
    ) -> None:
        self._spark = spark
        self._brokers = brokers
        self._tables = tuple(tables)
        names = {each.table.name for each in self._tables}
        self._joins = tuple(
            each for each in joins_in(self._package) if names.issuperset(part.name for part in each.table.folded)
        )
        self._every: tuple[AnyTable, ...] = (*self._tables, *self._joins)
        topology = self._tables[0].topology
        self._old = replace(topology, version=version - 1)
        self._new = replace(topology, version=version)
        self._work = work / self._new.group
        self._results = self._work  # of the plan
        self._archive = archive

    @property
    def topology(self) -> Topology:
        """The new version's: its changelogs must exist before `run`."""
        return self._new

    def run(self, report: Report) -> int:
        """How many rows the new version has. Raises GroupIsLive, AlreadyBuilt, NothingBefore, HistoryBroken,
        HistoryIncomplete, AnotherLog, HistoryMoved or FolderNotShared; in that case the new version still does not
        exist."""
        plan = self._plan()
        rows = self._stage(plan, report)
        self._refuse_problems()
        self._refuse_changes(plan)
        for table in self._every:
            self._write(table, plan)
        self._write_outcomes(plan)
        ends = self._unread_ends(plan)  # of neighbours' topics: they may keep us waiting
        self._supersede(self._new.group)  # whoever joins the old version later finds this before the first record
        try:
            self._refuse_changes(plan)
            positions, records = self._begins(plan), list(self._records(plan, ends))
        except Exception:
            self._supersede(None)
            raise
        self._brokers.commit_with(self._new.group, positions, records)
        shutil.rmtree(self._work)
        return rows

    def _plan(self) -> Plan:
        self._refuse_workers()
        noted = self._notes()  # before the positions: the new version counts what is dropped from here on
        return Plan(noted, self._positions(), self._ends(), tuple(self._archives()), code_digest(self._package))

    def _archives(self) -> Iterator[tuple[str, int]]:
        for archive in map(self._archive, self._tables):
            if archive is not None and archive.exists():
                yield archive.path, archive.version()

    def _notes(self) -> tuple[OperatorRequest, ...]:
        return notes(self._brokers, self._old)

    def _refuse_workers(self) -> None:
        if self._brokers.members(self._new.group):
            raise GroupIsLive(f"workers of {self._new.group} are running: stop them first")
        if self._writes_facts and self._brokers.members(self._old.group):
            raise GroupIsLive(
                f"workers of {self._old.group} are running, and they write more than views: stop them first"
            )
        if self._brokers.positions(self._new.group):
            raise AlreadyBuilt(f"{self._new.group} has positions: it was built before")

    def _refuse_changes(self, plan: Plan) -> None:
        """Minutes pass between the plan and the positions, and a supervisor may start a worker meanwhile."""
        self._refuse_workers()
        if not self._still_holds(plan):
            raise HistoryMoved(f"a worker of {self._old.group} ran meanwhile: keep them stopped, then rebuild again")

    def _still_holds(self, plan: Plan) -> bool:
        """Whether nothing has happened since that the new version would repeat."""
        if not self._writes_facts:
            return True  # views may go on
        return self._positions() == plan.positions and self._ends() == plan.ends

    def _ends(self) -> dict[str, Positions]:
        return {topic: self._brokers.settled_ends(topic) for topic in sorted(self._read_to_the_end())}

    def _positions(self) -> dict[str, Positions]:
        """Where the old version stands, in every topic that the new one reads."""
        brokers = self._brokers
        positions = brokers.positions(self._old.group)
        if not positions:
            raise NothingBefore(f"{self._old.group} never committed a position, or the brokers have forgotten it")
        self._refuse_renamed()
        positions.pop(self._old.parking.name, None)  # requests about its dead letters stay with the old version
        turns = positions.pop(self._old.routes.name, {})
        if shadowed := sorted(number for number, at in turns.items() if not Role.of(at).acts):
            raise NothingBefore(
                f"{self._old.group} does not act in partitions {shadowed}; fix: rebuild the version after the one that "
                f"does, or `switch {self._old.service}` first"
            )
        read = positions.keys() | {table.table.source.name for table in self._tables}
        found = {topic: brokers.starts(topic) | positions.get(topic, {}) for topic in sorted(read)}
        return {**found, self._old.routes.name: turns} if turns else found

    def _supersede(self, by: str | None) -> None:
        """Note in each partition of the old version that it may not go on, or with None, that it may."""
        target = self._old.changelog(self._old.parked).name
        if not self._writes_facts or not self._brokers.has(target):  # nor can a worker start without it
            return
        rows = [
            PARKED_CODEC.encode(Row(1, note_of_successor(number, by), {}, 0)) if by else None
            for number in range(self._old.partitions)
        ]
        records = [Record(target, SUPERSEDED_ID.encode(), row, number) for number, row in enumerate(rows)]
        self._brokers.commit_with(self._new.group, {}, records)

    def _refuse_renamed(self) -> None:
        service = self._old.service
        for table in (each.table for each in self._aggregates()):
            if not self._brokers.has(self._old.changelog(table).name):
                raise NothingBefore(
                    f"{self._old.group} has no changelog of {service}/{table.name}: was the table renamed? fix: give "
                    f"it the name that it had; if its changelog was deleted, `rebuild {service} --mirrored`"
                )

    def _records(self, plan: Plan, ends: Mapping[str, Positions]) -> Iterator[Record]:
        """What is committed with the new version's positions. ends: see `_unread_ends`."""
        noted = noted_begins(self._brokers, self._old)
        yield from (*self._still_parked(), *self._noted(plan), *self._all_ended(plan))
        yield from self._policies_begin(plan, noted, ends)

    def _begins(self, plan: Plan) -> dict[str, Positions]:
        """Where the new version goes on. Its history index, which only the engine writes, starts from the first event;
        the rows of a view of the same events skip what they include."""
        indexed = [] if self._new.history is None else [self._new.history.name]
        return {**plan.positions, **{topic: self._brokers.starts(topic) for topic in indexed}}

    def _unread_ends(self, plan: Plan) -> dict[str, Positions]:
        """The present of what the new version reads, and the old one does not, for policies that begin there."""
        read, stands = self._begins(plan), self._stands(plan)
        late = {each.source.name for each in answering_in(self._package) if not each.from_start}
        unread = {topic for topic in late & read.keys() if read[topic].keys() - stands.get(topic, {}).keys()}
        noted = noted_topics(self._brokers, self._old) if unread else {}
        return {topic: self._present(topic, noted) for topic in sorted(unread)}

    def _present(self, topic: str, noted: Mapping[int, Mapping[str, str]]) -> Positions:
        """Its ends, but 0 where the old version has read a former topic of that name: this one holds nothing past."""
        known, ends = {None, *self._brokers.topic_ids([topic])}, self._brokers.settled_ends(topic)
        return {number: end if noted.get(number, {}).get(topic) in known else 0 for number, end in ends.items()}

    def _policies_begin(
        self, plan: Plan, noted: Mapping[int, Begins], ends: Mapping[str, Positions]
    ) -> Iterator[Record]:
        """Notes for policies of what the new version reads from before the place where the old one stands in it.

        noted: for those of the old version.
        """
        answering, stands = answering_in(self._package), self._stands(plan)
        target = self._new.changelog(self._new.parked).name
        for number in range(self._new.partitions):
            ahead = begins_of(
                answering, noted.get(number, {}), *(_in(number, of) for of in (stands, self._begins(plan), ends))
            )
            if ahead:
                row = PARKED_CODEC.encode(Row(1, note_of(number, ahead), {}, 0))
                yield Record(target, BEGINS_ID.encode(), row, number)

    def _stands(self, plan: Plan) -> Mapping[str, Positions]:
        """Where the old version stands, in what it has read."""
        return self._brokers.positions(self._old.group)

    def _still_parked(self) -> list[Record]:
        """What is parked before the positions, for an operator; not what was folded again, or will be read again."""
        anew = {table.table for table in self._tables if table.is_view} | {self._new.history_index}
        names = {table.name for table in anew if table is not None}
        target = self._new.changelog(self._new.parked).name
        parked = parked_records(self._brokers, self._old)
        return [structs.replace(each, topic=target) for each in parked if parked_in(each).processor not in names]

    def _all_ended(self, plan: Plan) -> Iterator[Record]:
        """That the rows of views whose source is read again include it so far, also those that have ended."""
        target = self._new.changelog(self._new.parked).name
        for table in (each.table for each in self._tables if each.is_view and each.table.ends):
            source = table.source.name
            for number, position in plan.positions[source].items():
                row = PARKED_CODEC.encode(Row(1, note_of_ended(number, source, position - 1), {}, position - 1))
                yield Record(target, ended_id(table.name).encode(), row, number)
        for folded in (each for each in self._tables if each.table.expires is not None):
            for number, clock in self._clocks(plan, folded).items():
                row = PARKED_CODEC.encode(Row(1, note_of_clock(number, folded.events.name, clock), {}, clock.offset))
                yield Record(target, clock_id(folded.table.name).encode(), row, number)

    def _clocks(self, plan: Plan, table: FoldedTable) -> dict[int, Clock]:
        """By partition, where the rows that were folded stand."""
        ends, scope = plan.positions[table.events.name], scope_of(plan.notes, table)
        clocked = in_scope(self._history(table, ends, scope), scope, table).frame
        last = clocked.groupBy("partition").agg(F.unix_micros(F.max("timestamp")).alias("at")).collect()
        return {row.partition: Clock(ends[row.partition] - 1, _EPOCH + timedelta(microseconds=row.at)) for row in last}

    def _noted(self, plan: Plan) -> Iterator[Record]:
        """Records in no row of the old version's views are in no row of the new one's, which `parity` has to know."""
        for note in plan.notes:
            yield Record(self._new.parking.name, *note.record, partition_of_id(note.id))

    @property
    def _package(self) -> str:
        return self._tables[0].package

    @property
    def _writes_facts(self) -> bool:
        """Whether its workers write more than rows: those of two versions at once would write it twice."""
        return bool(self._new.topics or answering_in(self._package))

    def _aggregates(self) -> Iterator[FoldedTable]:
        return (table for table in self._tables if not table.is_view)

    def _read_to_the_end(self) -> set[str]:
        """The topics read up to their end: all that aggregates are folded from, and operators' requests."""
        changelogs = {self._old.changelog(table.table).name for table in self._aggregates()}
        events = {table.events.name for table in self._aggregates()}
        return changelogs | events | self._known_outcomes() | {self._old.parking.name}

    def _known_outcomes(self) -> set[str]:
        """The changelog of what the old version knows of commands; none if an earlier release kept that in its rows."""
        changelog = None if self._old.outcomes is None else self._old.changelog(self._old.outcomes).name
        return {changelog} if changelog is not None and self._brokers.has(changelog) else set()

    # Folding, table by table, into files.

    def _stage(self, plan: Plan, report: Report) -> int:
        # where no task of a run with another plan writes, which may live on after it for a moment
        self._results = self._work / sha256(plan.to_json().encode()).hexdigest()
        if not self._results.exists():
            shutil.rmtree(self._work, ignore_errors=True)
        began, rows = time.monotonic(), 0
        for count, table in enumerate(self._every, start=1):
            done = self._fold(plan, table)
            rows += done.rows
            report(done, count, len(self._every), time.monotonic() - began)
        return rows

    def _fold(self, plan: Plan, table: AnyTable) -> Done:
        target = self._staged(table)
        to_files(lambda some: self._rows(plan, table, some), _ROWS, target, range(self._new.partitions))
        folded = _read(target)
        counts = folded.to_table(columns=["events"])["events"]
        return Done(table.table.name, folded.count_rows(filter=_KEPT), pc.sum(counts).as_py() or 0)

    def _staged(self, table: AnyTable) -> Path:
        return self._results / table.table.name

    def _rows(self, plan: Plan, table: AnyTable, numbers: Sequence[int]) -> Flow:
        """_ROWS of these partitions, one after the other."""
        if isinstance(table, JoinedTable):
            return self._joined(table, numbers)
        if table.is_view:
            folded = self._folded(plan, table, numbers)
            return folded.then(partial(_of_view, table.package, table.table.name), _ROWS)
        # apart, as joining begins when all of them are folded
        target = self._results / f"{table.table.name}.states"
        to_files(partial(self._folded, plan, table), folds.STATES, target, numbers)
        states = self._spark.read.schema(folds.STATES).parquet(str(target)).where(F.col("partition").isin([*numbers]))
        both = self._taken_over(plan, table, numbers, states).join(states, [*_PLACE], "full_outer")
        encode = partial(_of_aggregate, table.package, table.table.name, plan.positions[table.table.source.name])
        return Flow(_in_turn(both.select(*_PLACE, "row", "sequence", "state", "problem")), [encode], _ROWS)

    def _folded(self, plan: Plan, table: FoldedTable, numbers: Sequence[int]) -> Flow:
        """Its STATES."""
        ends = plan.ends[table.events.name] if not table.is_view else plan.positions[table.events.name]
        scope = scope_of(plan.notes, table)  # an aggregate has no notes
        records = self._history(table, {number: ends[number] for number in numbers}, scope)
        return folds.states(in_scope(records, scope, table), table)

    def _history(self, table: FoldedTable, ends: Positions, scope: Scope) -> Flow:
        topic = table.events.name
        return events.records_below(self._spark, self._brokers, topic, ends, self._archive(table), scope.starts)

    def _joined(self, table: JoinedTable, numbers: Sequence[int]) -> Flow:
        """Made of the rows that were folded before, and all that these refer to in their partition."""
        parts = [
            self._spark.read.schema(_ROWS)
            .parquet(str(self._staged(part)))
            .where(F.col("partition").isin([*numbers]))
            .select(*_PLACE, F.col("value").alias(f"row_{index}"))
            for index, part in enumerate(table.parts)
        ]
        of_key = reduce(lambda some, more: some.join(more, [*_PLACE], "full_outer"), parts)
        referred = partial(_referred, [self._staged(each) for each in table.references])
        return Flow(_in_turn(of_key), [partial(_of_join, table.package, table.table.name, referred)], _ROWS)

    def _taken_over(self, plan: Plan, table: FoldedTable, numbers: Sequence[int], states: DataFrame) -> DataFrame:
        """What each key's row says besides the state: _PLACE, row. states: of each key."""
        changelog = self._old.changelog(table.table).name
        starts, ends = self._brokers.starts(changelog), plan.ends[changelog]
        starts = {number: starts[number] for number in numbers}
        return sources.latest(sources.topic(self._spark, self._brokers.bootstrap, changelog, starts, ends))

    def _refuse_problems(self) -> None:
        columns = ["key", "problem", "partition"]
        lines = [
            f"{key.decode(errors='replace')}: {problem} ({table.origin}, partition {partition})"
            for table in self._every
            for key, problem, partition in rows_of(
                _read(self._staged(table)).head(_PROBLEMS_SHOWN, columns=columns, filter=_BROKEN).to_batches()
            )
        ]
        if lines:
            more = sum(_read(self._staged(table)).count_rows(filter=_BROKEN) for table in self._every)
            more -= len(lines)
            raise HistoryBroken("\n".join([*lines, f"and {more:,} more"] if more else lines))

    def _write(self, table: AnyTable, plan: Plan) -> None:
        """Replaces what an unfinished run wrote: it may have folded other keys."""
        rows = self._spark.read.schema(_ROWS).parquet(str(self._staged(table)))
        kept = rows.where("value IS NOT NULL")
        is_aggregate = isinstance(table, FoldedTable) and not table.is_view
        if is_aggregate and table.table.ends and self._new.history_index is not None:
            ended = rows.where("value IS NULL AND events > 0")
            tell = partial(_ended, table.package, table.table.name, plan.positions[table.table.source.name])
            self._replace(self._new.changelog(self._new.history_index), ended.mapInArrow(tell, _ROWS))
            # a deletion for each partition: workers take a changelog without a record for that of another table
            kept = kept.unionByName(ended.dropDuplicates(["partition"]))
        self._replace(self._new.changelog(table.table), kept)

    def _write_outcomes(self, plan: Plan) -> None:
        """Of commands that are known yet: they don't depend on the fold."""
        if self._new.outcomes is None:
            return
        outcomes = self._outcomes(plan)
        newest = outcomes.agg(F.max("at").alias("at")).collect()[0].at
        if newest is not None:
            outcomes = outcomes.where(F.col("at") >= newest - self._new.outcomes.kept_ms)
        self._replace(self._new.changelog(self._new.outcomes), outcomes)

    def _outcomes(self, plan: Plan) -> DataFrame:
        """partition, key, value, at: of the old version's, each once. at: see shared.domain.outcomes."""
        copied = [
            sources.topic(self._spark, self._brokers.bootstrap, name, self._brokers.starts(name), plan.ends[name]).frame
            for name in self._known_outcomes()
        ]
        records = reduce(DataFrame.unionByName, copied, self._spark.createDataFrame([], sources.RECORDS))
        last = records.groupBy("partition", "key").agg(F.max_by("value", "offset").alias("value"))
        return last.where("value IS NOT NULL").withColumn("at", sources.field("at").cast("long"))

    def _replace(self, changelog: Topic, rows: DataFrame) -> None:
        Reprocessing(self._brokers.bootstrap).empty(changelog)
        to_topic(rows.select("key", "value", "partition").write, self._brokers.bootstrap, changelog.name).save()


def begins_of(
    answering: Iterable[Policy | Publication],
    noted: Begins,
    stands: Mapping[str, int],
    goes_on: Mapping[str, int],
    ends: Mapping[str, int],
) -> Begins:
    """By source and who answers it, the first offset to answer in a partition, where the new position is before that.

    answering: policies and publications. noted: of the old version, where it was on its way to there. stands: the old
    version. goes_on: the new one. ends: of what only the new one reads. Of a source that neither knows, a worker finds
    that out.
    """
    found = {topic: dict(each) for topic, each in noted.items() if topic in goes_on}
    begins = [(topic, STOOD, stood) for topic, stood in stands.items()]
    for each in answering:
        topic = each.source.name
        begins.append((topic, each.parked_under, stands.get(topic, 0 if each.from_start else ends.get(topic, 0))))
    for topic, name, begin in begins:
        if topic in goes_on and begin > goes_on[topic]:
            known = found.setdefault(topic, {})
            known[name] = max(begin, known.get(name, 0))
    return found


def _in(number: int, positions: Mapping[str, Positions]) -> dict[str, int]:
    return {topic: each[number] for topic, each in positions.items() if number in each}


def _in_turn(rows: DataFrame) -> DataFrame:
    """One partition after the other."""
    return rows.repartition("partition").sortWithinPartitions("partition")


def _read(path: Path) -> ds.Dataset:
    """_ROWS that tasks wrote there, read without a Spark job."""
    return ds.dataset(path, schema=schema_of(_ROWS), format="parquet")


def _referred(folders: Sequence[Path], number: int) -> Referred:
    """Those of partition `number`."""
    files = (folder / f"{number}.parquet" for folder in folders)
    return [dict(rows_of(_read(file).to_table(["key", "value"]).to_batches())) for file in files]


def _of_view(package: str, name: str, states: Batches) -> Iterator[pa.RecordBatch]:
    """Rows as the engine writes them: none of a key that has ended."""
    codec = table_in(package, name).row_codec
    rows = (
        (partition, key, *_encoded(codec, Row(count, from_json(state), {}, offset), problem))
        for partition, key, count, offset, state, later, problem in rows_of(states)
        if (count and not later) or problem  # nor of one that has expired
    )
    return as_batches(rows, _ROWS)


def _of_join(package: str, name: str, referred: Callable[[int], Referred], rows: Batches) -> Iterator[pa.RecordBatch]:
    """The same of a joined table. referred: by partition. rows: of each key, one for each part."""
    table = join_in(package, name)

    def made() -> Iterator[tuple[Any, ...]]:
        for number, some in groupby(rows_of(rows), key=itemgetter(0)):
            known = referred(number)
            for _, key, *of_parts in some:
                yield number, key, *_joining(table, key, of_parts, known)

    return as_batches(made(), _ROWS)


def _joining(
    table: JoinedTable, key: bytes, rows: list[bytes | None], referred: Referred = ()
) -> tuple[bytes | None, int, str | None]:
    """As `_encoded`."""
    try:
        keys = table.keys_of(rows[0])
        row = table.row(key, [*rows, *(some.get(each or b"") for each, some in zip(keys, referred, strict=True))])
    except Exception as error:  # whatever it is, it concerns this key, and the others go on
        return None, 0, f"its rows cannot be joined: {type(error).__name__}: {error}"
    return (None, 0, None) if row is None else _encoded(table.row_codec, row, None)


def _encoded(codec: RowCodec[Any], row: Row[Any], problem: str | None) -> tuple[bytes | None, int, str | None]:
    """(row, events, problem)"""
    if problem is not None:
        return None, row.sequence, problem
    try:
        return codec.encode_checked([row])[0], row.sequence, None
    except (ValueError, RecursionError) as error:
        return None, row.sequence, f"its new row could not be read again: {error}"


def _of_aggregate(package: str, name: str, positions: Positions, both: Batches) -> Iterator[pa.RecordBatch]:
    """The same. positions: of the old version in the commands."""
    table = table_in(package, name)
    rows = ((number, *_taking_over(table, positions[number], *fields)) for number, *fields in rows_of(both))
    return as_batches(rows, _ROWS)


def _ended(package: str, name: str, positions: Positions, rows: Batches) -> Iterator[pa.RecordBatch]:
    """What the history index tells of the aggregates that have no row any more.

    positions: of the old version in the commands. All before them was decided, or is parked.
    """
    table = table_in(package, name)
    codec = index_codec(table.row_codec.state_type)

    def told() -> Iterator[tuple[Any, ...]]:
        for partition, key, _, count, _ in rows_of(rows):
            last: Row[Any] = Row(count, table.initial, {}, positions[partition] - 1)
            yield partition, ended_key(key.decode()), codec.encode(ended(last)), count, None

    return as_batches(told(), _ROWS)


def _taking_over(
    table: FoldedTable,
    position: int,
    key: bytes,
    old: bytes | None,
    sequence: int | None,
    state: bytes | None,
    problem: str | None,
) -> tuple[bytes, bytes | None, int, str | None]:
    """(key, row, events, problem): the outcomes that are in the old row, of commands that failed, are taken over.

    Neither row nor problem: it has ended.
    """
    count = sequence or 0
    if problem is not None:
        return key, None, count, problem
    initial = to_json(table.initial)
    # else it has ended, maybe when that was declared yet
    if old is None and not table.row_codec.is_read_like(state or initial, table.initial):
        return key, None, count, f"{count} events, but no row"
    had_ended = {"sequence": count, "outcomes": {}, "offset": position - 1}
    fields: dict[str, Any] = had_ended if old is None else from_json(old)
    if fields["sequence"] != count:
        return key, None, count, f"{count} events, but its row is at sequence {fields['sequence']}"
    if table.has_ended(state or initial) and not fields["outcomes"]:
        return key, None, count, None
    folded = table.initial if state is None else from_json(state)
    # an offset that was not read yet is one of another topic, which was the table's source before
    offset = fields["offset"] if fields["offset"] < position else -1
    row = Row(count, folded, fields["outcomes"], offset)
    return key, *_encoded(table.row_codec, row, None)
