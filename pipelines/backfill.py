"""Imports the history of another system, from CSV or Parquet, as events and rows of a service.

An aggregate is imported whole or not at all: if one of its rows cannot be an event, all are rejected with the reasons.
Ids and bytes of the events follow from the rows, so that a second run finds the events of the first in the topic and
goes on after them. Rows of the table come last, for each aggregate that has none, or one that is behind its events.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import MAXYEAR, MINYEAR, datetime
from decimal import Decimal
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import structs
from pydantic import AliasChoices, BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json, to_json
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from pipelines import folds, sources
from pipelines.archive import Archive
from pipelines.arrow import as_batches, rows_of
from pipelines.catalog import FoldedTable, reactions_in, table_in
from pipelines.events import records_below
from pipelines.folds import Folded, advance_of
from pipelines.sinks import refuse_unshared, to_topic
from pipelines.sources import Flow
from shared.domain.envelope import EventCodec
from shared.domain.errors import BadMessage, OnefoldError, first_problem
from shared.domain.ids import check_aggregate_id, derived_id
from shared.domain.message import Event
from shared.domain.personal import personal_fields
from shared.domain.row import Row
from shared.kafka.brokers import Brokers, GroupIsLive
from shared.kafka.murmur2 import partition_of

_EVENTS = "partition int, key binary, sequence long, value binary, reason string"
_REASONS = "key binary, sequence long, reason string"
_RECORDS = "partition int, key binary, value binary"
_KEY, _AT, _SOURCE, _NTH = "__key", "__at", "__source", "nth"  # beside the columns of the source
_MALFORMED = "__malformed"
_SHOWN = 200  # characters
_DELIVERY_TIMEOUT_MS = 3_600_000  # two minutes by default: then a record is left out, and later ones are written
_TIME = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]"}  # Spark's own ends with milliseconds


class BadMapping(OnefoldError):
    """The mapping is not valid.

    Operator action: correct what the message names; docs/spark.md shows a valid mapping.
    """


class BadSource(OnefoldError):
    """A row of the CSV has not as many fields as its header: nothing says which of them are whose.

    Operator action: correct the row.
    """


class NotBegun(OnefoldError):
    """The group has no position: this version's tables were not filled from history yet, and a rebuild folds all
    events; or the service has policies, and its workers would take the position for one that brokers have forgotten.

    Operator action: `rebuild` the service; on a new cluster start its workers once, and stop them.
    """


class Rule(BaseModel):
    """An event for every row for which `where` holds. where and the values of data: Spark SQL over the row's columns
    and `nth`, the row's number within its aggregate, from 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    version: int = 1
    where: str = "true"
    data: dict[str, str] = {}


class RowMapping(BaseModel):
    """key: the aggregate's id; at: when it happened (UTC); order: of an aggregate's rows; where: which rows to take.
    All of them Spark SQL.

    A row's events are those of the rules that hold for it, in their order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    at: str
    order: tuple[str, ...]
    where: str = "true"
    events: tuple[Rule, ...]


def read_mapping(file: Path) -> RowMapping:
    """Raises BadMapping."""
    try:
        return RowMapping.model_validate(tomllib.loads(file.read_text("utf-8")))
    except ValidationError as error:
        raise BadMapping(f"{file}: {first_problem(error)}") from error
    except (OSError, ValueError) as error:  # also of a file that is not UTF-8
        raise BadMapping(f"{file}: {error}") from error


def read_rows(spark: SparkSession, source: str) -> DataFrame:
    """A Parquet file or folder, or CSV with a header, as in RFC 4180: then every column is text. Raises BadSource."""
    if source.rstrip("/").endswith(".parquet"):
        return spark.read.parquet(source)
    csv = spark.read.options(header=True, escape='"', multiLine=True)
    header = csv.csv(source).schema.fields
    marked = StructType([*header, StructField(_MALFORMED, StringType())])
    rows = csv.schema(marked).option("columnNameOfCorruptRecord", _MALFORMED).csv(source).cache()
    if (bad := rows.where(F.col(_MALFORMED).isNotNull()).first()) is not None:
        raise BadSource(f"{source}: not {len(header)} fields, as in the header: {bad[_MALFORMED][:_SHOWN]}")
    return rows.drop(_MALFORMED)


@dataclass(frozen=True, slots=True)
class Entered:
    """How many events were written, how many were there before, and how many rows of the source were rejected."""

    written: int
    known: int
    rejected: int


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
        """rejects: folder of a Delta table that is replaced: (key, source: the row as JSON, reason).

        Raises BadMapping, GroupIsLive, NotBegun, FolderNotShared, HistoryIncomplete or BrokersUnavailable.
        """
        _refuse_own_names(rows.columns)
        _refuse_fields(self._mapping.events, self._table.pure.events)
        self._refuse_workers()
        group = self._table.topology.group
        before = self._brokers.positions(group)
        refuse_unshared(self._spark, rejects)
        numbered = self._numbered(rows).cache()
        events = self._events(numbered).join(self._known(), ["key", "sequence"], "left").cache()
        reasons = _reasons(events, self._unfoldable(events)).cache()
        keyed = numbered.select(F.col(_KEY).alias("key"), F.col(_SOURCE).alias("source"))
        rejected = keyed.join(reasons, "key").select("key", "source", "reason")
        rejected.write.format("delta").mode("overwrite").save(rejects)
        good = events.join(reasons.select("key"), "key", "left_anti")
        missing = good.where("known IS NULL").select("partition", "key", "value", "sequence")
        written = missing.count()
        self._refuse_workers()  # again: some time has passed
        try:
            _write_in_order(missing, self._brokers.bootstrap, self._table.events.name)
            self._refuse_workers()
            _write_in_order(self._rows(), self._brokers.bootstrap, self._table.changelog)
            self._refuse_workers()
            if self._brokers.positions(group) != before:
                raise GroupIsLive(f"workers of {group} ran meanwhile, and may have numbered events anew")
        except BaseException as error:
            error.add_note("events may be there without their rows; fix: keep the workers stopped, then run this again")
            raise
        return Entered(written, good.count() - written, rejected.count())

    def _refuse_workers(self) -> None:
        """Those of former versions, too: they have no rows of the imported keys, and would number events from 1."""
        topology = self._table.topology
        for group in (replace(topology, version=version).group for version in range(1, topology.version + 1)):
            if self._brokers.members(group):
                raise GroupIsLive(f"workers of {group} are running: stop them first")
        needs_positions = topology.version > 1 or reactions_in(self._table.package)
        if needs_positions and not self._brokers.positions(topology.group):
            raise NotBegun(f"{topology.group} has no position: rebuild it first, or on a new cluster start it once")

    def _numbered(self, rows: DataFrame) -> DataFrame:
        """The source's columns, and: key, at, the row as JSON, its number within the key's rows."""
        source = F.to_json(F.struct(*(F.col(f"`{name}`") for name in rows.columns)), _TIME)
        key, at = F.expr(self._mapping.key).cast("string"), F.expr(self._mapping.at).cast("timestamp")
        # ties are ordered by the row itself: a later run has to number them alike
        order = ",\n".join((*self._mapping.order, _SOURCE))
        readable = F.when(F.year(at).between(MINYEAR, MAXYEAR), at)  # by Python, which Spark's range exceeds
        own = {_SOURCE: source, _AT: readable, _KEY: F.coalesce(key, F.lit("")).cast("binary")}
        taken = F.coalesce(F.expr(self._mapping.where), F.lit(True))
        chosen = rows.where(taken).withColumns(own)
        # as text: `F.expr` takes the DESC of `day DESC` for the column's new name
        return chosen.withColumn(_NTH, F.expr(f"row_number() OVER (PARTITION BY {_KEY} ORDER BY {order})"))

    def _events(self, rows: DataFrame) -> DataFrame:
        """_EVENTS, numbered as they will be in the topic."""
        rules = F.array_compact(F.array(*map(_event, self._mapping.events)))
        wheres = [("`where`", self._mapping.where)]
        wheres += [(f"`where` of {rule.type}", rule.where) for rule in self._mapping.events]
        unclear = F.coalesce(*(F.when(F.expr(where).isNull(), F.lit(name)) for name, where in wheres))
        each = rows.select(_KEY, _AT, _NTH, unclear.alias("unclear"), F.posexplode_outer(rules).alias("rule", "event"))
        number = F.row_number().over(Window.partitionBy(_KEY).orderBy(_NTH, "rule")).cast("long")
        encode = partial(_encode, self._table.package, self._table.table.name, self._table.topology.partitions)
        return each.select(_KEY, _AT, number, "event.type", "event.version", "event.data", "unclear").mapInArrow(
            encode, _EVENTS
        )

    def _unfoldable(self, events: DataFrame) -> DataFrame:
        """_REASONS of the keys that would have events, but no row."""
        fold = partial(_fold, self._table.package, self._table.table.name)
        valid = events.where("value IS NOT NULL").select("key", "value", "sequence")
        return valid.repartition("key").sortWithinPartitions("key", "sequence").mapInArrow(fold, _REASONS)

    def _history_so_far(self) -> Flow:
        topic = self._table.events.name
        return records_below(self._spark, self._brokers, topic, self._brokers.settled_ends(topic), self._archive)

    def _known(self) -> DataFrame:
        """The events that the topic already has: key, sequence, known, last_known: the greatest sequence of the key."""
        sequence = sources.field("sequence").cast("long").alias("sequence")
        last = F.max("sequence").over(Window.partitionBy("key"))
        known = self._history_so_far().frame.select("key", sequence, F.col("value").alias("known"))
        return known.withColumn("last_known", last)

    def _rows(self) -> DataFrame:
        """The row of every key that has none, or whose events go beyond it."""
        rows = sources.latest(sources.whole(self._spark, self._brokers, self._table.changelog))
        folded = folds.states(self._history_so_far(), self._table).frame.join(rows, "key", "left")
        encode = partial(_encode_rows, self._table.package, self._table.table.name)
        return (
            folded.where("sequence > 0 AND problem IS NULL")
            .select("partition", "key", "sequence", "state", "row")
            .mapInArrow(encode, _RECORDS)
        )


def _refuse_own_names(columns: Iterable[str]) -> None:
    """Raises BadMapping: an expression that names such a column would get backfill's own."""
    if taken := [name for name in columns if name.lower() in (_KEY, _AT, _SOURCE, _NTH)]:
        raise BadMapping(f"the source has a column {taken[0]}, a name that backfill uses itself: rename it")


def _refuse_fields(rules: Iterable[Rule], events: Iterable[type[Event]]) -> None:
    """Raises BadMapping for fields that an event lacks, whose values would be lost, and for personal ones."""
    now = {(event.TYPE, event.VERSION): event for event in events}
    for rule in rules:
        event = now.get((rule.type, rule.version))
        if event is None:
            continue
        fields = dict(_names_read(event))
        if others := rule.data.keys() - fields.keys():
            raise BadMapping(f"{rule.type} has no field {min(others)}; fix: correct or remove it in `data`")
        if personal := {name for name in rule.data if fields[name] in personal_fields(event)}:
            raise BadMapping(_is_personal(rule.type, min(personal)))


def _is_personal(type_: str, field: str) -> str:
    fix = "remove it from `data`, and send it in a command, which is encrypted"
    return f"{type_}: {field} is personal, and would be readable for ever; fix: {fix}"


def _names_read(event: type[Event]) -> Iterator[tuple[Any, str]]:
    """Each name that a field is read by, and the field."""
    for field, info in event.model_fields.items():
        alias = info.validation_alias
        for name in (field, *(alias.choices if isinstance(alias, AliasChoices) else [alias])):
            yield name, field


def _event(rule: Rule) -> Column:
    fields = [F.expr(value).alias(name) for name, value in rule.data.items()]
    # without the nulls, a value that could not be cast would become its field's default
    data = F.to_json(F.struct(*fields), _TIME | {"ignoreNullFields": "false"}) if fields else F.lit("{}")
    message = F.struct(F.lit(rule.type).alias("type"), F.lit(rule.version).alias("version"), data.alias("data"))
    return F.when(F.expr(rule.where), message)


def _reasons(events: DataFrame, unfoldable: DataFrame) -> DataFrame:
    """Why keys are rejected, the first reason of each: key, reason."""
    other = F.when(F.col("known") != F.col("value"), F.concat(F.lit("there is another event "), F.col("sequence")))
    last = F.max("last_known").over(Window.partitionBy("key"))
    gap = F.concat(F.lit("event "), F.col("sequence"), F.lit(" is missing, and event "), last, F.lit(" is there"))
    late = F.when(F.col("known").isNull() & (F.col("sequence") < last), gap)
    reason = F.coalesce("reason", other, late)
    found = events.select("key", "sequence", reason.alias("reason")).where("reason IS NOT NULL")
    return found.unionByName(unfoldable).groupBy("key").agg(F.min_by("reason", "sequence").alias("reason"))


def _encode(package: str, name: str, partitions: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    codec = table_in(package, name).pure.event_codec

    def rows() -> Iterator[tuple[Any, ...]]:
        for key, *fields in rows_of(batches):
            sequence = fields[1]
            try:
                value = _envelope(codec, check_aggregate_id(key.decode()), *fields)
                yield partition_of(key, partitions), key, sequence, value, None
            except ValueError as error:
                yield None, key, sequence, None, str(error)

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
    unclear: str | None = None,
) -> bytes:
    """An event that the service can read. Raises ValueError."""
    if at is None:
        raise ValueError("`at` is not a timestamp")
    if unclear is not None:
        raise ValueError(f"{unclear} is null, neither true nor false")
    if type_ is None:
        raise ValueError("no rule holds for the row")
    event_id = derived_id(key, "backfill", str(sequence))
    fields = {
        "event_id": event_id,
        "type": type_,
        "schema_version": version,
        "aggregate_id": key,
        "sequence": sequence,
        "occurred_at": at.isoformat().replace("+00:00", "Z"),
        "correlation_id": event_id,
        "causation_id": None,
        "data": json.loads(data or "{}", parse_float=_number),
    }
    try:
        event = codec.decode(to_json(fields))
    except BadMessage as bad:
        raise ValueError(bad.reason) from None
    checked: Event = event.data
    if personal := [name for name in personal_fields(type(checked)) if getattr(checked, name) is not None]:
        raise ValueError(_is_personal(type_, min(personal)))  # in an older version it may have another name
    return codec.encode(event)


def _fold(package: str, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """_REASONS of the keys whose events the service cannot fold into a row. batches: each key's events, in order."""
    table = table_in(package, name)
    advance, initial = advance_of(table), Folded(0, table.initial, -1)

    def rows() -> Iterator[tuple[Any, ...]]:
        for key, events in groupby(rows_of(batches), key=itemgetter(0)):
            folded = initial
            try:
                for _, value, _ in events:
                    folded = advance(folded, -1, key, value)
                table.row_codec.encode_checked([Row(folded.sequence, folded.state, {}, -1)])
            except Exception as error:  # whatever it is, no worker could go on with this key
                yield key, folded.sequence + 1, f"its events cannot be folded: {type(error).__name__}: {error}"

    return as_batches(rows(), _REASONS)


def _encode_rows(package: str, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The outcomes of commands are taken over from the existing row."""
    table = table_in(package, name)
    codec, no_row = table.row_codec, Row(0, table.initial, {}, -1)

    def rows() -> Iterator[tuple[Any, ...]]:
        for partition, key, sequence, state, row in rows_of(batches):
            before = codec.decode(row) if row is not None else no_row
            if before.sequence < sequence:
                after = structs.replace(before, sequence=sequence, state=from_json(state))
                yield partition, key, codec.encode(after)

    return as_batches(rows(), _RECORDS)


def _write_in_order(records: DataFrame, bootstrap: str, topic: str) -> None:
    """One producer writes all records of a partition, so that they stay in order."""
    order = [column for column in ("partition", "key", "sequence") if column in records.columns]
    ordered = records.repartition("partition").sortWithinPartitions(*order)
    writer = to_topic(ordered.select("partition", "key", "value").write, bootstrap, topic)
    writer.option("kafka.delivery.timeout.ms", _DELIVERY_TIMEOUT_MS).save()
