"""Imports the history of another system, from CSV or Parquet, as events and rows of a service.

An aggregate is imported whole or not at all: if one of its rows cannot be an event, all are rejected with the reasons.
Ids and bytes of the events follow from the rows, so that a second run finds the events of the first in the topic and
goes on after them. Rows of the table come last, for each aggregate that has none, or one that is behind its events.
The events are historical, so that policies pass over them.

An expression of the mapping that fails for a row, as ANSI SQL has it, rejects the row: no number is wrapped to fit.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import MAXYEAR, MINYEAR, datetime
from decimal import Decimal
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec import structs
from pydantic import AliasChoices, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import from_json, to_json
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.column import Column
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DateType, DoubleType, FloatType, NullType, StringType, TimestampNTZType, TimestampType

from pipelines import sources
from pipelines.archive import Archive
from pipelines.arrow import as_batches, by_partition, rows_of
from pipelines.catalog import FoldedTable, answering_in, table_in
from pipelines.consistency import Live, live_rows
from pipelines.events import records_below
from pipelines.files import PROBLEM, BadSource, Reading, Source, find
from pipelines.folds import Folded, advance_of
from pipelines.local_times import Twice, sql, sure_text
from pipelines.sinks import append_once, final_ends, refuse_unshared
from pipelines.sources import Flow
from shared.domain.envelope import EventCodec
from shared.domain.errors import BadMessage, OnefoldError, first_problem
from shared.domain.ids import check_aggregate_id, derived_id
from shared.domain.message import Message
from shared.domain.personal import personal_fields
from shared.domain.row import Row
from shared.kafka.brokers import Brokers, GroupIsLive, Positions
from shared.kafka.murmur2 import partition_of

_EVENTS = "partition int, key binary, sequence long, nth int, value binary, reason string"
_REASONS = "key binary, sequence long, nth int, reason string"
_RECORDS = "partition int, key binary, value binary"
_FEW_KEYS = 100_000
_KEY, _ID, _SOURCE, _NTH, _WRONG = "__key", "__id", "__source", "nth", "__wrong"  # own columns
_PLACE = "__place"  # of a value of `order`, with its number
_VALUE = "value"  # of what was tried
_DESCENDS = re.compile(r"(.+?)((?:\s+(?:ASC|DESC))?(?:\s+NULLS\s+(?:FIRST|LAST))?)\s*", re.IGNORECASE | re.DOTALL)
_ROUNDED = r"(?i)^[+-]?\d+([.,]\d*)?E\+\d+$"  # many ids would be one; 7e10, without a sign, may be one's own
_DAY = r"^\s*\d{4}-\d{1,2}-\d{1,2}"
_SHOWN = 10  # events of a trial, and reasons
_MESSAGE = ("type", "version", "data", "of")
INVALID = "row.invalid"  # the code of a row that could not become what the mapping says
_UNMARKED, _MARKED = '"causation_id":null,"data":', '"causation_id":null,"historical":true,"data":'
STRICT = {"spark.sql.ansi.enabled": "true"}  # what does not fit, or cannot be cast, fails: see `_tried`
APART = {
    # what two expressions share would be computed before both of them, and fail outside of both
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",  # too many digits fail, too, instead of being rounded
}
_LOCAL_TIME = "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]"  # Spark's own ends with milliseconds
_TIME = {"timestampFormat": f"{_LOCAL_TIME}[XXX]", "timestampNTZFormat": _LOCAL_TIME}


class BadMapping(OnefoldError):
    """The mapping is not valid.

    Operator action: correct what the message names; docs/spark.md shows a valid mapping.
    """


class NoRejects(OnefoldError):
    """The folder holds no rejected rows.

    Operator action: name the folder that `backfill --rejects` named.
    """


class NotBegun(OnefoldError):
    """The group has no position: this version's tables were not filled from history yet, and a rebuild folds all
    events; or the service has policies, and its workers would take the position for one that brokers have forgotten.

    Operator action: `rebuild` the service; on a new cluster start its workers once, and stop them.
    """


class Rule(BaseModel):
    """An event, or a command, for every row for which `where` holds. where, at and the values of data: Spark SQL over
    the row's columns and `nth`, the row's number within its aggregate, from 1. at: when it happened, by default as the
    row did."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    version: int = 1
    where: str = "true"
    at: str | None = None
    data: dict[str, str] = {}


class Lookup(Reading):
    """A file of reference, one row for each `key`, which is one of its columns. by: Spark SQL over a row of the source,
    which gets the row with that key as one more column."""

    file: str
    key: str
    by: str


class RowMapping(Reading):
    """key: the aggregate's id; at: when it happened (UTC); order: of an aggregate's rows; where: which rows to take;
    id: tells a row from others of its aggregate, so that none is sent twice as commands. All of them Spark SQL.
    lookups: by the name of the column that each adds.

    A row's events or commands are those of the rules that hold for it, in their order.
    """

    key: str
    at: str | None = None
    order: tuple[str, ...]
    where: str = "true"
    id: str | None = None
    events: tuple[Rule, ...] = ()
    commands: tuple[Rule, ...] = ()
    lookups: Mapping[str, Lookup] = {}

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.events or self.commands

    @property
    def moments(self) -> list[str]:
        """Of the rules, in their order."""
        return [rule.at or self.at or "" for rule in self.rules]

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> RowMapping:
        if bool(self.events) == bool(self.commands):
            raise ValueError("rows become either events or commands; fix: name [[events]], or [[commands]]")
        if self.commands and self.id is None:
            fix = 'say which columns tell a row of an aggregate from its others, as id = "order_id"'
            raise ValueError(f"[[commands]] need an `id`, by which a row that comes again is known; fix: {fix}")
        if self.events and self.id is not None:
            raise ValueError("[[events]] are known by their number; fix: remove `id`, or name [[commands]]")
        if not all(self.moments):
            raise ValueError(f"{self.rules[self.moments.index('')].type} has no `at`; fix: say when it happened")
        return self


def read_mapping(file: Path) -> RowMapping:
    """The files of lookups are named from the folder of `file`. Raises BadMapping."""
    try:
        mapping = RowMapping.model_validate(tomllib.loads(file.read_text("utf-8-sig")))
        found = {
            name: each.model_copy(update={"file": str(file.parent / each.file)})
            for name, each in mapping.lookups.items()
        }
        return mapping.model_copy(update={"lookups": found})
    except ValidationError as error:
        raise BadMapping(f"{file}: {first_problem(error)}") from error
    except (OSError, ValueError) as error:  # also of a file that is not UTF-8
        raise BadMapping(f"{file}: {error}") from error


def find_lookups(mapping: RowMapping) -> dict[str, Source]:
    """Raises BadSource, as `find` does."""
    return {name: find(each.file, each) for name, each in mapping.lookups.items()}


def looked_up(rows: DataFrame, mapping: RowMapping, found: Mapping[str, Source]) -> DataFrame:
    """The rows, as `read_rows` has them, each with the row of every lookup that belongs to it, null where none does.

    One whose `by` cannot be computed has that as its PROBLEM. Raises BadMapping, and BadSource for a lookup in which a
    key is there twice or is a float, or a row can't be read.
    """
    for name, lookup in mapping.lookups.items():
        if name in rows.columns:
            raise BadMapping(f"the source has a column {name}; fix: name the lookup otherwise")
        known = read_rows(rows.sparkSession, found[name])
        names = [each for each in known.columns if each != PROBLEM]
        if lookup.key not in names:
            raise BadMapping(f"{lookup.file} has no column {lookup.key}; it has {', '.join(names)}")
        if isinstance(kind := known.schema[lookup.key].dataType, FloatType | DoubleType):
            what = f"column {lookup.key} is a {kind.simpleString()}, whose digits are no key"
            raise BadSource(f"{lookup.file}: {what}; fix: write it as whole numbers, or as text")
        if PROBLEM in known.columns and (wrong := known.where(F.col(PROBLEM).isNotNull()).first()):
            raise BadSource(f"{lookup.file}: {wrong[PROBLEM].why}; fix: correct it, as others are looked up in it")
        key = _column(lookup.key).cast("string").alias(_KEY)
        known = known.select(key, F.struct(*map(_column, names)).alias(name)).where(F.col(_KEY).isNotNull())
        if twice := known.groupBy(_KEY).count().where("count > 1").orderBy(_KEY).first():
            raise BadSource(f"{lookup.file}: {lookup.key} {twice[_KEY]} is there {twice['count']} times; fix: keep one")
        with having(rows.sparkSession, STRICT):
            _refuse_float(rows, f"lookups.{name}.by", lookup.by)
            by = _tried(sql(lookup.by, mapping.times.twice).cast("string"))
            why = _failure(by, f"`lookups.{name}.by`").alias("why")
            failed = F.when(by.isNull(), F.struct(why, F.lit(None).cast("map<string, string>").alias("texts")))
            rows = rows.withColumns({_KEY: by[_VALUE], PROBLEM: F.coalesce(PROBLEM, failed)})
        rows = rows.join(F.broadcast(known), _KEY, "left").drop(_KEY)
    return rows


def read_rows(spark: SparkSession, found: Source) -> DataFrame:
    """The columns of the source, and PROBLEM. Raises BadSource, when it is read, too."""
    try:
        schema = from_arrow_schema(found.schema)
    except PySparkTypeError as unknown:
        raise BadSource(f"{found.splits[0].file}: {unknown}; fix: write that column as another type") from None
    tasks = spark.range(0, len(found.splits), 1, max(1, len(found.splits)))
    return tasks.mapInArrow(partial(_read, found), schema)


def _read(found: Source, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for (number,) in rows_of(numbers):
        yield from found.read(found.splits[number])


@dataclass(frozen=True, slots=True)
class Entered:
    """How many events were written, how many were there before, how many rows of the source were rejected, and how many
    `where` left out. reasons: the most frequent ones."""

    written: int
    known: int
    rejected: int
    left_out: int = 0
    reasons: tuple[Reason, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why so many rows are wrong, and one of them. Others are rejected with them, as rows of the same aggregates."""

    rows: int
    reason: str
    example: str


@dataclass(frozen=True, slots=True)
class Trial:
    """events: the first that would be written, as JSON. unused: the source's columns that the mapping does not name."""

    entered: Entered
    events: list[str]
    unused: list[str]


def reasons_in(rejected: DataFrame) -> tuple[Reason, ...]:
    """The most frequent ones. Refusals are counted by their code: what `decide` says of each may name its values."""
    by = F.when(F.col("code") == INVALID, F.col("reason")).otherwise(F.col("code"))
    each_reason = rejected.where("own").groupBy(by.alias("by"))
    first = F.min(F.struct("source", "reason", "code")).alias("first")
    found = each_reason.agg(F.count(F.lit(1)).alias("rows"), first).orderBy(F.desc("rows"), "by").limit(_SHOWN)
    return tuple(Reason(each.rows, _told(each.first), each.first.source) for each in found.collect())


@dataclass(frozen=True, slots=True)
class Rejects:
    """Of one reason: how many rows are wrong, the first of them, and how many others went with them."""

    reason: str
    rows: int
    others: int
    examples: tuple[str, ...]


def rejects_in(spark: SparkSession, folder: str, examples: int) -> list[Rejects]:
    """All reasons in the table that a run wrote there, the most frequent first."""
    rejected = spark.read.format("delta").load(folder)
    code = F.col("code") if "code" in rejected.columns else F.lit(INVALID)  # releases before wrote none
    reason = F.when(code == INVALID, F.col("reason")).otherwise(F.concat_ws(": ", code, "reason"))
    order = Window.partitionBy("said").orderBy(F.desc("own"), "source")
    each = rejected.select("source", "own", reason.alias("said")).withColumn("n", F.row_number().over(order))
    first = F.sort_array(F.collect_list(F.when(F.col("own") & (F.col("n") <= examples), F.col("source"))))
    own = F.count_if("own").alias("own")
    found = each.groupBy("said").agg(own, F.count_if(~F.col("own")).alias("others"), first.alias("first"))
    ordered = found.orderBy(F.desc("own"), F.desc("others"), "said").collect()
    return [Rejects(row.said, row.own, row.others, tuple(row["first"])) for row in ordered]


def _told(rejected: Any) -> str:
    reason: str = rejected.reason
    return reason if rejected.code == INVALID else f"{rejected.code}: {reason}"


@dataclass(frozen=True, slots=True)
class Judged:
    """numbered: the rows that are taken. good: their events, but those of rejected aggregates."""

    numbered: DataFrame
    good: DataFrame
    rejected: DataFrame

    @property
    def missing(self) -> DataFrame:
        return self.good.where("known IS NULL")

    def entered(self, rows: DataFrame) -> Entered:
        written, known = self.good.agg(F.count_if(F.col("known").isNull()), F.count("known")).first()
        left_out = rows.count() - self.numbered.count()
        return Entered(written, known, self.rejected.count(), left_out, reasons_in(self.rejected))


class Backfill:
    """Writes to an aggregate's table and its topic of events, while no worker of the service runs.

    archive: has the events that the topic no longer has.
    """

    def __init__(
        self,
        spark: SparkSession,
        brokers: Brokers,
        table: FoldedTable,
        mapping: RowMapping,
        archive: Archive | None = None,
    ) -> None:
        self._spark = spark
        self._brokers = brokers
        self._table = table
        self._mapping = mapping
        self._archive = archive

    def run(self, rows: DataFrame, rejects: str) -> Entered:
        """rejects: folder of a Delta table that is replaced: (key, source: the row as JSON, reason, code, own: whether
        the row itself is wrong, or another one of its aggregate).

        Raises BadMapping, GroupIsLive, NotBegun, FolderNotShared, HistoryIncomplete, AnotherLog or BrokersUnavailable.
        """
        self._refuse_mapping(rows)
        self._refuse_workers()
        group = self._table.topology.group
        before = self._brokers.positions(group)
        refuse_unshared(self._spark, rejects)
        events, changelog = self._table.events.name, self._table.changelog
        ends = final_ends(self._brokers.bootstrap, events, group)
        with having(self._spark, APART):
            judged = self._judged(rows, ends)
            write_rejects(judged.rejected, rejects)
            entered = judged.entered(rows)
            self._refuse_workers()  # again: some time has passed
            try:
                _write_in_order(judged.missing, self._brokers.bootstrap, events, group, ends)
                self._refuse_workers()
                behind, ends = self._rows(), self._brokers.settled_ends(changelog)
                _write_in_order(behind, self._brokers.bootstrap, changelog, group, ends)
                self._refuse_workers()
                if self._brokers.positions(group) != before:
                    raise GroupIsLive(f"workers of {group} ran meanwhile, and may have numbered events anew")
            except BaseException as error:
                fix = "keep the workers stopped, then run this again"
                error.add_note(f"events may be there without their rows; fix: {fix}")
                raise
        return entered

    def try_out(self, rows: DataFrame) -> Trial:
        """What `run` would do; writes nothing, and workers may run.

        Raises BadMapping, HistoryIncomplete or AnotherLog.
        """
        self._refuse_mapping(rows)
        with having(self._spark, APART):
            judged = self._judged(rows, self._ends())
            first = judged.missing.orderBy("key", "sequence").limit(_SHOWN).collect()
            events = [bytes(event.value).decode() for event in first]
            return Trial(judged.entered(rows), events, self._unused(rows))

    def _ends(self) -> Positions:
        return self._brokers.settled_ends(self._table.events.name)

    def _judged(self, rows: DataFrame, ends: Positions) -> Judged:
        """ends: of the history so far."""
        with having(self._spark, STRICT):
            numbered = self._numbered(rows).cache()
            encoded = self._events(numbered)
        events = encoded.join(self._known(numbered, ends), ["key", "sequence"], "left").cache()
        reasons = _reasons(events, self._unfoldable(events)).cache()
        firsts = reasons.groupBy("key").agg(F.min_by("reason", _NTH).alias("first"))
        keyed = numbered.select(F.col(_KEY).alias("key"), F.col(_SOURCE).alias("source"), _NTH)
        each = keyed.join(firsts, "key").join(reasons, ["key", _NTH], "left")
        told = F.coalesce("reason", "first").alias("reason"), F.col("reason").isNotNull().alias("own")
        rejected = each.select("key", "source", *told, F.lit(INVALID).alias("code")).cache()
        return Judged(numbered, events.join(reasons.select("key"), "key", "left_anti"), rejected)

    def _unused(self, rows: DataFrame) -> list[str]:
        mapping = self._mapping
        of_rules = (value for rule in mapping.rules for value in (rule.where, *rule.data.values()))
        of_rows = mapping.key, *mapping.moments, mapping.where, *map(_without_direction, mapping.order)
        of_lookups = (lookup.by for lookup in mapping.lookups.values())
        used = [F.expr(value) for value in (*of_rows, *of_rules, *of_lookups, *filter(None, [mapping.id]))]

        def is_used(name: str) -> bool:
            try:
                rows.drop(name).withColumn(_NTH, F.lit(1)).select(used)
            except AnalysisException:
                return True
            return False

        with having(self._spark, STRICT):
            return [name for name in rows.columns if name != PROBLEM and not is_used(name)]

    def _refuse_mapping(self, rows: DataFrame) -> None:
        _refuse_ending(self._table)
        self._refuse_expressions(rows, self._table.pure.events)

    def _refuse_expressions(self, rows: DataFrame, messages: Iterable[type[Message]]) -> None:
        """Raises BadMapping. messages: what the rules make."""
        mapping = self._mapping
        _refuse_own_names(rows.columns)
        _refuse_fields(mapping.rules, messages)
        with having(self._spark, STRICT):
            for what, value in (("key", mapping.key), ("id", mapping.id)):
                if value is not None:
                    _refuse_float(rows, what, value)
            for at in dict.fromkeys(mapping.moments):
                _refuse_no_time(rows, at)

    def _refuse_workers(self) -> None:
        """Those of former versions, too: they have no rows of the imported keys, and would number events from 1."""
        topology = self._table.topology
        for group in (replace(topology, version=version).group for version in range(1, topology.version + 1)):
            if self._brokers.members(group):
                raise GroupIsLive(f"workers of {group} are running: stop them first")
        needs_positions = topology.version > 1 or answering_in(self._table.package)
        if needs_positions and not self._brokers.positions(topology.group):
            raise NotBegun(f"{topology.group} has no position: rebuild it first, or on a new cluster start it once")

    def _numbered(self, rows: DataFrame) -> DataFrame:
        """The source's columns, and: key, at, the row as JSON, what is wrong, its number within the key's rows."""
        names = [name for name in rows.columns if name not in (PROBLEM, *self._mapping.lookups)]
        problem = [F.col(PROBLEM)] if PROBLEM in rows.columns else []
        source = F.to_json(F.struct(*map(_column, names), *(each["texts"].alias(PROBLEM) for each in problem)), _TIME)
        mapping = self._mapping
        of = partial(sql, twice=mapping.times.twice)
        key, id_ = (_tried(of(value).cast("string")) for value in (mapping.key, mapping.id or "''"))
        taken = _tried(of(mapping.where))
        places = {f"{_PLACE}{n}": _tried(of(_without_direction(order))) for n, order in enumerate(mapping.order)}
        fix = "is a number that a spreadsheet has rounded; fix: export that column as text"
        wrong = F.coalesce(
            *(each["why"] for each in problem),
            _failure(key, "`key`"),
            *(
                F.when(value[_VALUE].rlike(_ROUNDED), F.lit(f"{what} {fix}"))
                for what, value in (("`key`", key), ("`id`", id_))
            ),
            *_doubts(id_, "`id`", "so that nothing tells the row from others"),
            *_doubts(taken, "`where`"),
            *(_failure(place, "`order`") for place in places.values()),
        )
        own = {
            _SOURCE: source,
            _KEY: F.coalesce(key[_VALUE], F.lit("")).cast("binary"),
            _ID: id_[_VALUE],
            _WRONG: wrong,
        }
        chosen = rows.where(F.coalesce(taken[_VALUE], F.lit(True))).withColumns(own | places)
        directions = (_DESCENDS.fullmatch(order)[2] for order in mapping.order)  # type: ignore[index]
        ordered = [f"{place}.{_VALUE}{direction}" for place, direction in zip(places, directions, strict=True)]
        # ties are ordered by the row itself: a later run has to number them alike
        order = ", ".join((*ordered, _SOURCE))
        number = F.expr(f"row_number() OVER (PARTITION BY {_KEY} ORDER BY {order})")
        return chosen.withColumn(_NTH, number).drop(*places)

    def _made(self, rows: DataFrame) -> DataFrame:
        """What the rules make of each row, one row if nothing: key, nth, id, wrong, at, number within the key, type,
        version, data, of: which of the rules of its type it is of, from 0."""
        mapping, twice = self._mapping, self._mapping.times.twice
        types = [rule.type for rule in mapping.rules]
        each_of = (types[:n].count(type_) for n, type_ in enumerate(types))
        times = (_time(rows, at, twice) for at in mapping.moments)
        made = (_event(rule, twice, time, of) for rule, time, of in zip(mapping.rules, times, each_of, strict=True))
        rules = F.array_compact(F.array(*made))
        each = rows.select(_KEY, _NTH, _ID, _WRONG, F.posexplode_outer(rules).alias("rule", "event"))
        number = F.row_number().over(Window.partitionBy(_KEY).orderBy(_NTH, "rule")).cast("long").alias("number")
        wrong = F.coalesce(_WRONG, "event.wrong").alias("wrong")
        return each.select(_KEY, _NTH, _ID, wrong, "event.at", number, *(f"event.{name}" for name in _MESSAGE))

    def _events(self, rows: DataFrame) -> DataFrame:
        """_EVENTS, numbered as they will be in the topic."""
        encode = partial(_encode, self._table.package, self._table.table.name, self._table.topology.partitions)
        made = self._made(rows).select(_KEY, _NTH, "wrong", "at", "number", *_MESSAGE[:3])
        return made.mapInArrow(encode, _EVENTS)

    def _unfoldable(self, events: DataFrame) -> DataFrame:
        """_REASONS of the keys that would have events, but no row."""
        fold = partial(_fold, self._table.package, self._table.table.name)
        valid = events.where("value IS NOT NULL").select("key", "value", "sequence", _NTH)
        return valid.repartition("key").sortWithinPartitions("key", "sequence").mapInArrow(fold, _REASONS)

    def _history_below(self, ends: Positions) -> Flow:
        return records_below(self._spark, self._brokers, self._table.events.name, ends, self._archive)

    def _history_of(self, keyed: DataFrame, ends: Positions) -> Flow:
        """That of these keys, unless they are many; a short file beside a long history has it read, but not parsed.

        keyed: with the column `key`.
        """
        keys = [bytes(each.key) for each in keyed.select("key").distinct().limit(_FEW_KEYS + 1).collect()]
        history = self._history_below(ends)
        return history if len(keys) > _FEW_KEYS else history.then(partial(sources.of_keys, keys), sources.RECORDS)

    def _known(self, numbered: DataFrame, ends: Positions) -> DataFrame:
        """The events that the topic has of these rows: key, sequence, known, last_known: the greatest of the key.

        known: as `run` would write it today. Earlier releases did not mark what they loaded.
        """
        sequence = sources.field("sequence").cast("long").alias("sequence")
        last = F.max("sequence").over(Window.partitionBy("key"))
        marked = F.replace(F.col("value").cast("string"), F.lit(_UNMARKED), F.lit(_MARKED)).cast("binary")
        history = self._history_of(numbered.select(F.col(_KEY).alias("key")), ends)
        known = history.frame.select("key", sequence, marked.alias("known"))
        return known.withColumn("last_known", last)

    def _rows(self) -> DataFrame:
        """The row of every key that has none, or whose events go beyond it: also what another run left, that died."""
        live = live_rows(self._brokers, self._table.changelog, None)
        followed = partial(_followed, self._table.package, self._table.table.name, live)
        return self._history_below(self._ends()).then(followed, _RECORDS).frame


@contextmanager
def having(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def _tried(value: Column) -> Column:
    """A struct of the value, which may be null; null if the value cannot be computed."""
    # no SQL does this for any expression; both are private to Spark, whose version is pinned
    jvm = SparkSession.active()._jvm.org.apache.spark.sql
    expression = jvm.classic.ExpressionUtils.expression(F.struct(value.alias(_VALUE))._jc)
    return Column(jvm.classic.ExpressionUtils.column(jvm.catalyst.expressions.TryEval(expression)))


def _failure(tried: Column, what: str) -> Column:
    return F.when(
        tried.isNull(),
        F.lit(f"{what} cannot be computed: a number does not fit, or a text or a local time is no such value"),
    )


def _doubts(condition: Column, what: str, meaning: str = "neither true nor false") -> tuple[Column, Column]:
    unclear = F.when(condition[_VALUE].isNull(), F.lit(f"{what} is null, {meaning}"))
    return _failure(condition, what), unclear


def _without_direction(order: str) -> str:
    """order: an expression, and perhaps `DESC` and `NULLS LAST`."""
    return _DESCENDS.fullmatch(order)[1]  # type: ignore[index]


def _column(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def _refuse_own_names(columns: Iterable[str]) -> None:
    """Raises BadMapping: an expression that names such a column would get backfill's own."""
    own = (_KEY, _ID, _SOURCE, _NTH, _WRONG)
    if taken := [name for name in columns if name.lower() in own or name.lower().startswith(_PLACE)]:
        raise BadMapping(f"the source has a column {taken[0]}, a name that backfill uses itself: rename it")


def _refuse_ending(table: FoldedTable) -> None:
    """Raises BadMapping: what has ended would get a row again."""
    if table.table.ends:
        fix = "leave out its `ends` in topology.py until this is done; rows that should have ended do so then"
        raise BadMapping(f"rows of {table.table.name} end, and backfill writes one for each key; fix: {fix}")


def _refuse_float(rows: DataFrame, what: str, value: str) -> None:
    """Raises BadMapping: 12345678 would be the aggregate 1.2345678E7, as whole numbers are where some are missing."""
    if rows.select(F.expr(value)).schema[0].dataType in (FloatType(), DoubleType()):
        raise BadMapping(
            f"`{what}` is a {DoubleType().simpleString()}, whose digits are no id; fix: CAST({value} AS BIGINT)"
        )


def _refuse_no_time(rows: DataFrame, at: str) -> None:
    """Raises BadMapping: a number would be seconds since 1970, whatever it is."""
    kind = rows.select(F.expr(at)).schema[0].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType | DateType | StringType | NullType):
        fix = f"timestamp_seconds({at}), timestamp_millis({at}) or to_timestamp(CAST({at} AS STRING), 'yyyyMMdd')"
        raise BadMapping(f"`at` is of the type {kind.simpleString()}, no time; fix: {fix}")


class _Time(NamedTuple):
    """at: null if it cannot be computed, or is not known exactly; then wrong says why, if it is known."""

    at: Column
    wrong: Column


def _time(rows: DataFrame, at: str, twice: Twice) -> _Time:
    is_text = isinstance(rows.select(F.expr(at)).schema[0].dataType, StringType)

    def read(value: Column, checked: Callable[[Column], Column] = sure_text) -> Column:
        # a text without year, month and day would be today's, or the first
        value = F.when(value.rlike(_DAY), checked(value)) if is_text else value
        return _readable(value.cast("timestamp"))

    found, earlier, guessed = read(sql(at, twice)), read(sql(at, "earlier")), read(F.expr(at), lambda value: value)
    repeated = F.when(earlier.isNotNull(), "`at` is a local time that was there twice; fix: say `times.twice`")
    skipped = repeated.when(
        guessed.isNotNull(), "`at` is a local time that clocks skipped, or names its zone by letters"
    )
    return _Time(found, F.when(found.isNull(), skipped))


def _readable(at: Column) -> Column:
    """Null if it cannot be computed, or not be read by Python, whose range Spark's exceeds."""
    value = _tried(at)[_VALUE]
    return F.when(F.year(value).between(MINYEAR, MAXYEAR), value)


def _refuse_fields(rules: Iterable[Rule], messages: Iterable[type[Message]]) -> None:
    """Raises BadMapping for fields that a message lacks, whose values would be lost, and for personal ones."""
    now = {(message.TYPE, message.VERSION): message for message in messages}
    for rule in rules:
        message = now.get((rule.type, rule.version))
        if message is None:
            continue
        fields = dict(_names_read(message))
        if others := rule.data.keys() - fields.keys():
            raise BadMapping(f"{rule.type} has no field {min(others)}; fix: correct or remove it in `data`")
        if personal := {name for name in rule.data if fields[name] in personal_fields(message)}:
            raise BadMapping(_is_personal(rule.type, min(personal)))


def _is_personal(type_: str, field: str) -> str:
    fix = "remove it from `data`, and send it in a command over HTTP, which is encrypted"
    return f"{type_}: {field} is personal, and would be readable for ever; fix: {fix}"


def _names_read(message: type[Message]) -> Iterator[tuple[Any, str]]:
    """Each name that a field is read by, and the field."""
    for own, info in message.model_fields.items():
        alias = info.validation_alias
        for name in (own, *(alias.choices if isinstance(alias, AliasChoices) else [alias])):
            yield name, own


def _event(rule: Rule, twice: Twice = None, time: _Time | None = None, of: int = 0) -> Column:
    """Null where the rule does not hold. wrong: why its event, or command, cannot be known. of: as in `_made`."""
    holds = _tried(sql(rule.where, twice))
    values = {name: _tried(sql(value, twice)) for name, value in rule.data.items()}
    fields = [value[_VALUE].alias(name) for name, value in values.items()]
    # without the nulls, a value that is null would become its field's default
    data = F.to_json(F.struct(*fields), _TIME | {"ignoreNullFields": "false"}) if fields else F.lit("{}")
    wrong = F.coalesce(
        *_doubts(holds, f"`where` of {rule.type}"),
        *(_failure(value, f"`data.{name}` of {rule.type}") for name, value in values.items()),
        *([time.wrong] if time else ()),
    )
    known = {"type": rule.type, "version": rule.version, "of": of}
    event = {name: F.lit(value) for name, value in known.items()} | {"data": data, "wrong": wrong}
    if time:
        event["at"] = time.at
    return F.when(
        F.coalesce(holds[_VALUE], F.lit(True)),
        F.struct(*(column.alias(name) for name, column in event.items())),
    )


def _reasons(events: DataFrame, unfoldable: DataFrame) -> DataFrame:
    """What is wrong with rows, the first reason of each: key, nth, reason.

    An aggregate that lacks an event, as a row of it is wrong, would be unfoldable for that reason alone.
    """
    other = F.when(F.col("known") != F.col("value"), F.concat(F.lit("there is another event "), F.col("sequence")))
    last = F.max("last_known").over(Window.partitionBy("key"))
    gap = F.concat(F.lit("event "), F.col("sequence"), F.lit(" is missing, and event "), last, F.lit(" is there"))
    late = F.when(F.col("known").isNull() & (F.col("sequence") < last), gap)
    reason = F.coalesce("reason", other, late)
    found = events.select("key", "sequence", _NTH, reason.alias("reason")).where("reason IS NOT NULL")
    others = unfoldable.join(found, "key", "left_anti")
    return found.unionByName(others).groupBy("key", _NTH).agg(F.min_by("reason", "sequence").alias("reason"))


def _encode(package: str, name: str, partitions: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    codec = table_in(package, name).pure.event_codec

    def rows() -> Iterator[tuple[Any, ...]]:
        for key, nth, wrong, *fields in rows_of(batches):
            sequence = fields[1]
            try:
                if wrong is not None:
                    raise ValueError(wrong)
                value = _envelope(codec, check_aggregate_id(key.decode()), *fields)
                yield partition_of(key, partitions), key, sequence, nth, value, None
            except ValueError as error:
                yield None, key, sequence, nth, None, str(error)

    return as_batches(rows(), _EVENTS)


def _number(text: str) -> float | str:
    """As text, which a Decimal is read from, if a float would lose digits."""
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else text


def _envelope(
    codec: EventCodec[Any],
    key: str,
    at: datetime | None,
    sequence: int,
    type_: str | None,
    version: int | None,
    data: str | None,
) -> bytes:
    """An event that the service can read. Raises ValueError."""
    at = check_made(type_, at)
    event_id = derived_id(key, "backfill", str(sequence))
    fields = {
        "event_id": event_id,
        "type": type_,
        "schema_version": version,
        "aggregate_id": key,
        "sequence": sequence,
        "occurred_at": utc(at),
        "correlation_id": event_id,
        "causation_id": None,
        "historical": True,
        "data": data_of(data),
    }
    return codec.encode(decoded(codec, fields))


def check_made(type_: str | None, at: datetime | None) -> datetime:
    """The time. Raises ValueError."""
    if type_ is None:
        raise ValueError("no rule holds for the row")
    if at is None:
        raise ValueError("`at` is not a timestamp")
    return at


def utc(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def data_of(text: str | None) -> Any:
    """What the data of a rule says, with all digits of its numbers."""
    return json.loads(text or "{}", parse_float=_number)


def decoded(codec: Any, fields: Mapping[str, Any]) -> Any:
    """The envelope of an event or a command, as the service reads it. Raises ValueError."""
    try:
        envelope = codec.decode(to_json(fields))
    except BadMessage as bad:
        raise ValueError(bad.reason) from None
    checked: Message = envelope.data
    if personal := [name for name in personal_fields(type(checked)) if getattr(checked, name) is not None]:
        raise ValueError(_is_personal(envelope.type, min(personal)))  # in an older version it may have another name
    return envelope


def _fold(package: str, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """_REASONS of the keys whose events the service cannot fold into a row. batches: each key's events, in order."""
    table = table_in(package, name)
    advance, initial = advance_of(table), Folded(0, table.initial, -1)

    def rows() -> Iterator[tuple[Any, ...]]:
        for key, events in groupby(rows_of(batches), key=itemgetter(0)):
            folded = initial
            try:
                for event in events:
                    folded = advance(folded, -1, key, event[1])
                table.row_codec.encode_checked([Row(folded.sequence, folded.state, {}, -1)])
            except Exception as error:  # whatever it is, no worker could go on with this key
                yield (
                    key,
                    folded.sequence + 1,
                    event[3],
                    f"its events cannot be folded: {type(error).__name__}: {error}",
                )

    return as_batches(rows(), _REASONS)


def _followed(package: str, name: str, live: Live, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """_RECORDS of the rows that are behind their events, after these; all else of such a row is kept. A key whose
    events cannot be folded has none.

    What a row includes is not decoded: as many records as its sequence says, as no number is left out.
    """
    table = table_in(package, name)
    codec, advance, no_row = table.row_codec, advance_of(table), Row(0, table.initial, {}, -1)

    def rows(number: int, records: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[Any, ...]]:
        encoded = live.rows(number)
        included = {key: from_json(row)["sequence"] for key, row in encoded.items()}
        seen, behind = Counter[bytes](), dict[bytes, Row[Any]]()
        for key, value in records:
            seen[key] += 1
            if seen[key] > included.get(key, 0):
                if key not in behind:
                    behind[key] = codec.decode_whole(encoded[key]) if key in encoded else no_row
                row = behind[key]
                with suppress(Exception):  # whatever it is, it concerns this key, and the others go on
                    after = advance(Folded(row.sequence, row.state, -1), -1, key, value)
                    behind[key] = structs.replace(row, sequence=after.sequence, state=after.state)
        for key, row in behind.items():
            if row.sequence == seen[key]:
                yield number, key, codec.encode(row)

    for number, some in groupby(by_partition(batches), key=itemgetter(0)):
        records = chain.from_iterable(rows_of([batch.select(["key", "value"])]) for _, batch in some)
        yield from as_batches(rows(number, records), _RECORDS)


def write_rejects(rejected: DataFrame, target: str) -> None:
    """target: the folder of a Delta table, which is replaced."""
    table = rejected.write.format("delta").mode("overwrite")
    table.option("overwriteSchema", "true").save(target)  # a former version's may have other columns


def _write_in_order(records: DataFrame, bootstrap: str, topic: str, group: str, ends: Positions) -> None:
    """One task writes all records of a partition, so that they stay in order."""
    order = [column for column in ("partition", "key", "sequence") if column in records.columns]
    ordered = records.repartition("partition").sortWithinPartitions(*order)
    append_once(ordered.select("partition", "key", "value"), bootstrap, topic, group, ends)
