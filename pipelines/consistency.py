"""The consistency check: is every row of a live table the fold of its key's events?

The changelog is read up to a fixed end, then the events up to a later one, so each row's events are among them,
even while the service goes on working. A row is compared with the fold at the sequence that the row states. Nor may it
be behind: an aggregate's must include all events of that moment, a view's those that its group had committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pydantic import ValidationError
from pydantic_core import from_json, to_json
from pyspark.sql import DataFrame, SparkSession

from pipelines import folds, sources
from pipelines.answers import ask
from pipelines.answers import difference as answer_difference
from pipelines.archive import Archive
from pipelines.arrow import as_batches, rows_of, schema_of
from pipelines.catalog import FoldedTable, Version, table_in
from pipelines.divergence import Divergence, canonical, first_divergences, records_of
from pipelines.events import records_below
from pipelines.parked import Scope, in_scope, parked_keys, present_scope
from pipelines.sampling import Sample, sample_of
from pipelines.served import Compared, compare
from pipelines.sources import Flow
from shared.domain.errors import OnefoldError, first_problem
from shared.domain.row import RowCodec
from shared.kafka.brokers import Brokers, Positions

DIFFERENCES_SHOWN = 5
REASONS_A_TASK = 100
TRIES = 3
HISTORIES = 1_000

_VERDICTS = "agree long, differ long, key binary, why string"
_ANSWERS = "key binary, answer binary"


class DeadLettersMoved(OnefoldError):
    """Dead letters of the view were retried each time its rows were read: it is unknown which rows include them.

    Operator action: run it again when nobody retries dead letters; a --sample takes less time.
    """


class NothingRead(OnefoldError):
    """The workers of a view have no position in its source, so no row can be wrong, and none proves anything.

    Operator action: rebuild the version if it was raised; start its workers; then run it again.
    """


@dataclass(frozen=True, slots=True)
class Verdict:
    """agree, differ: how many keys. asked: how much was compared over HTTP, by what it is. parked: keys whose later
    records wait. divergences: of the first that differ. partition: of a sample's keys.
    """

    table: str
    agree: int
    differ: int
    asked: Mapping[str, int]
    parked: int
    divergences: tuple[Divergence, ...] = ()
    partition: int | None = None

    @property
    def total(self) -> int:
        return self.agree + self.differ

    def __str__(self) -> str:
        told = ", ".join(f"{count:,} {what}" for what, count in self.asked.items())
        http = f" ({told})" if told else ""
        sample = "" if self.partition is None else f" of partition {self.partition}"
        parked = f", {self.parked:,} of them up to a parked record" if self.parked else ""
        more = self.differ - len(self.divergences)
        lines = [
            f"{self.agree:,} of {self.total:,} {self.table}{sample} agree{http}{parked}",
            *map(str, self.divergences),
        ]
        return "\n  ".join([*lines, f"and {more:,} more"] if more else lines)


def check(
    spark: SparkSession,
    brokers: Brokers,
    table: FoldedTable,
    *,
    archive: Archive | None = None,
    url: str | None = None,
    path: str | None = None,
    sample: int | None = None,
) -> Verdict:
    """Compares every key of `table` or, of one partition, about `sample`; with `url`, also what the service serves of
    them: rows, lists, and of HISTORIES aggregates also histories and outcomes. path: of a row, see `worker_at`.

    archive: has the events that the topic no longer has. Raises BrokersUnavailable, HistoryIncomplete,
    ServiceUnavailable, DeadLettersMoved or NothingRead.
    """
    for _ in range(TRIES):
        before = present_scope(brokers, table, parked_keys(brokers, table))
        # In this order, an event that a row or an answer includes is below the end of the events.
        settled = settled_in(brokers, table)
        spans = sources.spans(brokers, table.changelog)
        changelog, rows, chosen = rows_of_table(spark, brokers, table.changelog, spans, sample)
        answers = _answers(url, table, rows, path) if url else {}
        parked = parked_keys(brokers, table)
        scope = present_scope(brokers, table, parked)
        if scope.is_within(before):
            break
    else:
        raise DeadLettersMoved(f"dead letters of {table.table.name} were retried during all {TRIES} reads of it")
    events = events_of(spark, brokers, table, scope, archive, chosen)
    folded = folds.states(events, table, since=settled).frame
    judged = _compare(rows, folded, _as_rows(spark, answers), table).collect()
    agree, differ = sum(row.agree for row in judged), sum(row.differ for row in judged)
    reasons = {bytes(row.key): row.why for row in judged if row.key is not None}
    served = Compared()
    if url and answers:
        some = {} if table.is_view else records_of(events, list(answers)[:HISTORIES])
        served = compare(url, path, table, answers, some, chosen and chosen.number)
        wrong = served.wrong.keys() - reasons.keys()
        agree, differ, reasons = agree - len(wrong), differ + len(wrong), {**served.wrong, **reasons}
    first = dict(sorted(reasons.items())[:DIFFERENCES_SHOWN])
    divergences = first_divergences(table, events, changelog, first) if first else ()
    keys = sum(not each.is_page for each in parked)
    asked = {"also over HTTP": len(answers), **served.counts} if answers else {}
    number = chosen and chosen.number
    return Verdict(table.table.name, agree, differ, asked, keys, divergences, number)


def rows_of_table(
    spark: SparkSession, brokers: Brokers, changelog: str, spans: Mapping[int, tuple[int, int]], sample: int | None
) -> tuple[Flow, DataFrame, Sample | None]:
    """The changelog's records, and the last of each key, as `sources.latest`; only of a sample's keys, if asked.

    spans: where its records begin and end.
    """
    if sample is None:
        records = sources.between(spark, brokers, changelog, spans)
        return records, sources.latest(records), None
    chosen = sample_of(spans)
    records = sources.between(spark, brokers, changelog, chosen.of(spans))
    chosen = chosen.narrowed(sources.latest(records), sample)
    records = chosen.taken(records)
    return records, sources.latest(records), chosen


def events_of(
    spark: SparkSession,
    brokers: Brokers,
    table: FoldedTable,
    scope: Scope,
    archive: Archive | None,
    chosen: Sample | None,
    *,
    whole: bool = False,
) -> Flow:
    """The events that its rows include by now; of a sample, those of its keys, or with `whole` of their partition."""
    ends = brokers.settled_ends(table.events.name)
    if chosen is not None:
        ends = chosen.of(ends)
    events = in_scope(records_below(spark, brokers, table.events.name, ends, archive, scope.starts), scope, table)
    if chosen is None or whole:
        return events
    return chosen.taken(events, clocked=table.table.expires is not None)


def settled_in(brokers: Brokers, table: FoldedTable) -> Positions:
    """The end of the events that rows include: of an aggregate, all committed; of a view, its workers' positions."""
    topic, group = table.events.name, table.topology.group
    if not table.is_view:
        return brokers.settled_ends(topic)
    starts, positions = brokers.starts(topic), brokers.positions(group).get(topic, {})
    if not positions and starts != brokers.settled_ends(topic):
        raise NothingRead(
            f"{group} has no position in {topic}, so {table.table.name} has read nothing of it; fix: if `version` was "
            f"raised, `rebuild {table.topology.service}`; start its workers, then run again"
        )
    return starts | positions


def _answers(url: str, table: FoldedTable, rows: DataFrame, path: str | None) -> dict[bytes, bytes]:
    keys = sorted(bytes(row.key) for row in rows.select("key").collect())
    return ask(url, table.table.name, keys, path)


def _as_rows(spark: SparkSession, answers: Mapping[bytes, bytes]) -> DataFrame:
    columns = [list(answers.keys()), list(answers.values())]
    return spark.createDataFrame(pa.table(columns, schema=schema_of(_ANSWERS)))


def _compare(rows: DataFrame, folded: DataFrame, answers: DataFrame, table: FoldedTable) -> DataFrame:
    """Per task how many keys agree and differ, then a line each for the first that differ."""
    all_of_key = rows.join(folded, ["partition", "key"], "full_outer").join(answers, "key", "left")
    columns = all_of_key.select("key", "row", "answer", "sequence", "state", "later", "problem")
    return columns.mapInArrow(partial(_judge, table.package, table.table.name), _VERDICTS)


def _judge(package: str, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    table = table_in(package, name)
    codec = table.row_codec
    agree = differ = 0
    reasons: list[tuple[bytes, str]] = []
    for key, row, answer, sequence, state, later, problem in rows_of(batches):
        if row is None and not sequence and problem is None:
            continue  # its first event came after the changelog was read
        versions = table.versions(sequence or 0, [state or to_json(table.initial), *(later or ())])
        why = f"its events cannot be folded: {problem}" if problem else difference(codec, row, versions)
        if why is None and answer is not None:
            why = answer_difference(answer, versions, to_json(table.initial))
        agree += why is None
        differ += why is not None
        if why is not None and len(reasons) < REASONS_A_TASK:
            reasons.append((key, why))
    yield from as_batches([(agree, differ, None, None), *((0, 0, key, why) for key, why in reasons)], _VERDICTS)


def difference(codec: RowCodec[Any], row: bytes | None, versions: Sequence[Version]) -> str | None:
    """Why a row is not the fold of its key's events, one of these versions; None when it is.

    The row is read as the service reads it, so a field added to its state since is no difference.
    """
    first, last = versions[0].sequence, versions[-1].sequence
    if row is None:
        return None if any(each.has_ended for each in versions) else f"no row, but {first} events"
    try:
        live = codec.decode(row)
    except ValidationError as error:
        return f"its row can't be read: {first_problem(error)}"
    folded = [each.state for each in versions if each.sequence == live.sequence]
    if not folded and live.sequence < first:
        return f"its row stopped at sequence {live.sequence}, its events had gone on to {first}"
    if not folded:
        return f"its row is at sequence {live.sequence}, its events end at {last}"
    state = canonical(from_json(to_json(live.state)))
    return None if state in map(_canonical, folded) else f"its state differs at sequence {live.sequence}"


def _canonical(state: bytes) -> str:
    return canonical(from_json(state))
