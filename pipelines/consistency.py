"""The consistency check: is every row of a live table the fold of its key's events?

The changelog is read up to a fixed end, then the events up to a later one, so each row's events are among them,
even while the service goes on working. A row is compared with the fold at the sequence that the row states. Nor may it
be behind: an aggregate's must include all events of that moment, a view's those that its group had committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import ValidationError
from pydantic_core import from_json, to_json
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipelines import folds, sources
from pipelines.answers import ask
from pipelines.answers import difference as answer_difference
from pipelines.archive import Archive
from pipelines.arrow import as_batches
from pipelines.catalog import FoldedTable, Version, table_in
from pipelines.divergence import Divergence, canonical, first_divergences, records_of
from pipelines.events import records_below
from pipelines.parked import Scope, count_in, in_scope, parked_keys, present_scope
from pipelines.sampling import Sample, sample_of
from pipelines.served import Compared, compare
from pipelines.sources import Flow
from shared.domain.errors import OnefoldError, first_problem
from shared.domain.row import RowCodec
from shared.kafka.access import client_config
from shared.kafka.brokers import Brokers, Positions
from shared.kafka.spans import Span, read
from shared.runtime.positions import Place

DIFFERENCES_SHOWN = 5
REASONS_A_TASK = 100
TRIES = 3
HISTORIES = 1_000

_VERDICTS = "partition int, agree long, differ long, key binary, why string"


class DeadLettersMoved(OnefoldError):
    """Dead letters of the view were retried each time its rows were read: it is unknown which rows include them.

    Operator action: run it again when nobody retries dead letters; a --sample takes less time.
    """


class NothingRead(OnefoldError):
    """The workers of a view have no position in its source, so no row can be wrong, and none proves anything.

    Operator action: rebuild the version if it was raised; start its workers; then run it again.
    """


class Judged(NamedTuple):
    """_VERDICTS: how many keys of a partition agree and differ; or a key that differs, and why."""

    partition: int
    agree: int
    differ: int
    key: bytes | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """agree, differ: how many keys. asked: how much was compared over HTTP, by what it is. parked: keys whose later
    records wait, with a sample all of its partition. divergences: of the first that differ. partition: of a sample.
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
        of = "them" if self.partition is None else "all there"
        parked = f", {self.parked:,} of {of} up to a parked record" if self.parked else ""
        more = self.differ - len(self.divergences)
        lines = [
            f"{self.agree:,} of {self.total:,} {self.table}{sample} agree{http}{parked}",
            *map(str, self.divergences),
        ]
        return "\n  ".join([*lines, f"and {more:,} more"] if more else lines)


def check(spark: SparkSession, brokers: Brokers, table: FoldedTable, **options: Any) -> Verdict:
    """Of one table. options: of its Comparison, which see for what it raises."""
    (verdict,) = verdicts([Comparison(spark, brokers, table, **options)])
    return verdict


class Comparison:
    """The rows of a table as of one moment, and the events that they include: every key or, of one partition, about
    `sample`; with `url`, also what the service serves of them: rows, lists, and of HISTORIES aggregates also histories
    and outcomes.
    """

    def __init__(
        self,
        spark: SparkSession,
        brokers: Brokers,
        table: FoldedTable,
        *,
        archive: Archive | None = None,
        url: str | None = None,
        path: str | None = None,
        sample: int | None = None,
    ) -> None:
        """archive: has the events that the topic no longer has. path: of a row, see `worker_at`.

        Raises BrokersUnavailable, HistoryIncomplete, AnotherLog, ServiceUnavailable, DeadLettersMoved or NothingRead.
        """
        for _ in range(TRIES):
            before = present_scope(brokers, table, parked_keys(brokers, table))
            # In this order, an event that a row or an answer includes is below the end of the events.
            settled = settled_in(brokers, table)
            self._live = live_rows(brokers, table.changelog, sample)
            self._answers = ask(url, table.table.name, sorted(self._live.keys()), path) if url else {}
            parked = parked_keys(brokers, table)
            scope = present_scope(brokers, table, parked)
            if scope.is_within(before):
                break
        else:
            raise DeadLettersMoved(f"dead letters of {table.table.name} were retried during all {TRIES} reads of it")
        self._table, self._url, self._path, chosen = table, url, path, self._live.chosen
        self._number = chosen and chosen.number
        self._parked = count_in(self._number, parked)
        self._events = events_of(spark, brokers, table, scope, archive, chosen)
        self._changelog = sources.between(spark, brokers, table.changelog, self._live.spans)
        told = spark.sparkContext.broadcast(self._answers) if self._answers else None
        judge = partial(_judge, table.package, table.table.name, folds.checked_partitions(table), settled)
        self._judged = self._events.then(partial(judge, self._live, told), _VERDICTS)

    def judged(self, index: int) -> DataFrame:
        return self._judged.frame.withColumn("index", F.lit(index))

    def verdict(self, judged: Iterable[Judged]) -> Verdict:
        """judged: of the partitions that have events."""
        table, answers = self._table, self._answers
        found = [*judged]
        for number in {*self._live.filled} - {each.partition for each in found}:
            found += _judged(table, number, self._live.rows(number), (), answers)
        agree, differ = sum(each.agree for each in found), sum(each.differ for each in found)
        reasons = {bytes(each.key): each.why for each in found if each.key is not None}
        served = Compared()
        if self._url and answers:
            some = {} if table.is_view else records_of(self._events, list(answers)[:HISTORIES])
            served = compare(self._url, self._path, table, answers, some, self._number)
            wrong = served.wrong.keys() - reasons.keys()
            agree, differ, reasons = agree - len(wrong), differ + len(wrong), {**served.wrong, **reasons}
        first = dict(sorted(reasons.items())[:DIFFERENCES_SHOWN])
        divergences = first_divergences(table, self._events, self._changelog, first) if first else ()
        asked = {"also over HTTP": len(answers), **served.counts} if answers else {}
        return Verdict(table.table.name, agree, differ, asked, self._parked, divergences, self._number)


def verdicts(comparisons: Sequence[Comparison]) -> Iterator[Verdict]:
    """Of each, in their order; one Spark job reads and compares all of them."""
    frames = (comparison.judged(index) for index, comparison in enumerate(comparisons))
    found = defaultdict[int, list[Judged]](list)
    for *judged, index in reduce(DataFrame.unionByName, frames).collect():
        found[index].append(Judged(*judged))
    return (comparison.verdict(found[index]) for index, comparison in enumerate(comparisons))


class Live(NamedTuple):
    """The rows of a table as its changelog has them up to fixed ends. spans: of each partition that is read."""

    client: Mapping[str, Any]
    changelog: str
    spans: Mapping[int, tuple[int, int]]
    chosen: Sample | None = None

    @property
    def filled(self) -> list[int]:
        return [number for number, (start, end) in self.spans.items() if start < end]

    def rows(self, number: int) -> dict[bytes, bytes]:
        """The last of each key in the partition, without the deleted ones; of a sample, only of its keys."""
        last = dict[bytes | None, bytes | None]()
        for chunk in read(self.client, Span(Place(self.changelog, number), *self.spans.get(number, (0, 0)))):
            last.update(zip(chunk.keys, chunk.values, strict=True))
        chosen = self.chosen
        return {
            key: row
            for key, row in last.items()
            if key is not None and row is not None and (chosen is None or chosen.has(key))
        }

    def keys(self) -> Iterator[bytes]:
        for number in self.filled:
            yield from self.rows(number)


def live_rows(brokers: Brokers, changelog: str, sample: int | None) -> Live:
    """As of now. sample: about how many keys, of one partition."""
    live = Live(client_config(brokers.bootstrap), changelog, sources.spans(brokers, changelog))
    if sample is None:
        return live
    chosen = sample_of(live.spans)
    live = live._replace(spans=chosen.of(live.spans), chosen=chosen)
    return live._replace(chosen=chosen.narrowed(live.keys(), sample))


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


def _judge(
    package: str,
    name: str,
    partitions: int | None,
    since: Mapping[int, int],
    live: Live,
    answers: Broadcast[Mapping[bytes, bytes]] | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """A step of a Flow: from records to _VERDICTS. Rows are read first, before a compaction removes them."""
    table = table_in(package, name)
    for number, states in folds.folded(table, partitions, since, batches):
        judged = _judged(table, number, live.rows(number), states, answers.value if answers else {})
        yield from as_batches(judged, _VERDICTS)


def _judged(
    table: FoldedTable,
    number: int,
    rows: dict[bytes, bytes],
    states: Iterable[tuple[Any, ...]],
    answers: Mapping[bytes, bytes],
) -> Iterator[Judged]:
    """Of a partition, how many keys agree and differ, then a line each for the first that differ.

    rows: which are taken out. states: as in `pipelines.folds.STATES`.
    """
    codec = table.row_codec
    agree = differ = 0
    reasons: list[tuple[bytes, str]] = []

    def each_key() -> Iterator[tuple[Any, ...]]:
        for _, key, *fields in states:
            yield key, rows.pop(key, None), *fields
        yield from ((key, row, 0, -1, None, (), None) for key, row in rows.items())

    for key, row, sequence, _, state, later, problem in each_key():
        if row is None and not sequence and problem is None:
            continue  # its first event came after the changelog was read
        versions = table.versions(sequence, [state or to_json(table.initial), *later])
        why = f"its events cannot be folded: {problem}" if problem else difference(codec, row, versions)
        if why is None and key in answers:
            why = answer_difference(answers[key], versions, to_json(table.initial))
        agree += why is None
        differ += why is not None
        if why is not None and len(reasons) < REASONS_A_TASK:
            reasons.append((key, why))
    yield Judged(number, agree, differ)
    yield from (Judged(number, 0, 0, key, why) for key, why in reasons)


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
