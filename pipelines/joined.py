"""The consistency check of joined tables: is every row the join of what each view's events give by themselves?

A joined row says which rows it was made of, by the sequence of each. So each view is folded by itself up to there, and
the results are joined, by the service's own `join`. A view that it does not name had no row then: it had not begun, or
had ended. As with other tables, the rows are read up to a fixed end before the events are, and a row must include what
the workers had read by then. What is answered over HTTP says less of what it was made of, so that is compared with the
rows themselves: it has to be one that the changelog had since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from itertools import chain, product
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import ValidationError
from pydantic_core import from_json, to_json
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipelines import folds, sources
from pipelines.answers import ask
from pipelines.answers import difference as answer_difference
from pipelines.archive import Archive
from pipelines.arrow import as_batches, rows_of
from pipelines.catalog import FoldedTable, JoinedTable, Version, join_in
from pipelines.consistency import (
    DIFFERENCES_SHOWN,
    REASONS_A_TASK,
    TRIES,
    DeadLettersMoved,
    Verdict,
    events_of,
    live_rows,
    settled_in,
)
from pipelines.divergence import Divergence, canonical, records_of
from pipelines.parked import Scope, count_in, parked_keys, present_scope
from pipelines.sampling import Sample
from pipelines.served import compare
from shared.domain.errors import first_problem
from shared.domain.row import Row
from shared.kafka.brokers import Brokers, Positions

_VERDICTS = "agree long, differ long, key binary, why string, live string, folded string"


class Part(NamedTuple):
    """What the events of one view give for a key, as in `pipelines.folds.STATES`; all None where there are none."""

    sequence: int | None
    state: bytes | None
    later: Sequence[bytes] | None
    problem: str | None


_NOTHING = Part(None, None, None, None)
_NO_STATE = b"null"

Told = Mapping[int, Mapping[bytes, Part]]
"""What the events of a reference table give, by partition and key."""


class Difference(NamedTuple):
    """Why a row is not the join, and both states as JSON, as far as there are any."""

    why: str
    live: str = "no row"
    folded: str = "nothing"


def check(
    spark: SparkSession,
    brokers: Brokers,
    table: JoinedTable,
    archive: Callable[[FoldedTable], Archive | None],
    *,
    url: str | None = None,
    path: str | None = None,
    sample: int | None = None,
) -> Verdict:
    """Compares every key of `table` or, of one partition, about `sample`; with `url`, also what the service serves of
    them, rows and lists, with the changelog. archive: of a view, has the events that its topic no longer has. path: of
    a row, see `worker_at`.

    Raises BrokersUnavailable, HistoryIncomplete, AnotherLog, ServiceUnavailable, DeadLettersMoved or NothingRead.
    """
    for _ in range(TRIES):
        before, _ = _scopes(brokers, table, None)
        # in this order, an event that a row includes is below the end of the events
        settled = [settled_in(brokers, part) for part in table.every]
        live = live_rows(brokers, table.changelog, sample)
        spans, chosen = live.spans, live.chosen
        changelog = sources.between(spark, brokers, table.changelog, spans)
        rows = sources.latest(chosen.taken(changelog) if chosen else changelog)
        answers, kept = _asked(spark, brokers, table, rows, spans, url, path) if url else ({}, {})
        scopes, parked = _scopes(brokers, table, chosen and chosen.number)
        if all(scope.is_within(other) for scope, other in zip(scopes, before, strict=True)):
            break
    else:
        raise DeadLettersMoved(f"dead letters of {table.origin} were retried during all {TRIES} reads of them")
    parts = [
        _folded(spark, brokers, part, scope, since, archive(part), chosen, whole=index >= len(table.parts))
        for index, (part, scope, since) in enumerate(zip(table.every, scopes, settled, strict=True))
    ]
    judged = _judged(rows, parts, table).collect()
    agree, differ = sum(row.agree for row in judged), sum(row.differ for row in judged)
    reasons = {
        bytes(row.key): Divergence(_shown(row.key), row.why, row.live, row.folded, f"in the join of {table.origin}")
        for row in judged
        if row.key is not None
    }
    asked = dict[str, int]()
    if url and answers:
        served = compare(url, path, table, answers, {}, chosen and chosen.number)
        wrong = {**served.wrong, **_misanswered(table, answers, kept)}
        others = {
            key: Divergence(
                _shown(key), why, _shown(answers[key]), _shown(kept[key][-1] or b""), "between HTTP and the changelog"
            )
            for key, why in wrong.items()
            if key not in reasons
        }
        agree, differ, reasons = agree - len(others), differ + len(others), reasons | others
        asked = {"also over HTTP": len(answers), **served.counts}
    divergences = tuple(reasons[key] for key in sorted(reasons)[:DIFFERENCES_SHOWN])
    return Verdict(table.table.name, agree, differ, asked, parked, divergences, chosen and chosen.number)


def _shown(text: bytes) -> str:
    return bytes(text).decode(errors="replace")


def _asked(
    spark: SparkSession,
    brokers: Brokers,
    table: JoinedTable,
    rows: DataFrame,
    spans: Mapping[int, tuple[int, int]],
    url: str,
    path: str | None,
) -> tuple[Mapping[bytes, bytes], Mapping[bytes, Sequence[bytes | None]]]:
    """What is answered for each key of `rows`, and the rows that it had meanwhile, None where it had none any more."""
    kept: dict[bytes, list[bytes | None]] = {bytes(row.key): [bytes(row.row)] for row in rows.collect()}
    answers = ask(url, table.table.name, sorted(kept), path)
    since, ends = {number: end for number, (_, end) in spans.items()}, brokers.settled_ends(table.changelog)
    written = sources.topic(spark, brokers.bootstrap, table.changelog, since, ends)
    for key, records in records_of(written, list(kept)).items():
        kept[key] += [each.value for each in records]
    return answers, kept


def _misanswered(
    table: JoinedTable, answers: Mapping[bytes, bytes], kept: Mapping[bytes, Sequence[bytes | None]]
) -> dict[bytes, str]:
    """Why an answer is none of the rows that its key had while it was asked for, by key."""
    versions = {key: list(_versions_of(table, kept[key])) for key in answers}
    found = {key: answer_difference(answers[key], rows, _NO_STATE) for key, rows in versions.items() if rows}
    return {key: why for key, why in found.items() if why}


def _versions_of(table: JoinedTable, rows: Iterable[bytes | None]) -> Iterator[Version]:
    for row in rows:
        with suppress(ValidationError):  # of the last row it is told anyhow
            live = None if row is None else table.row_codec.decode(row)
            yield Version(live.sequence, to_json(live.state), False) if live else Version(0, _NO_STATE, True)


def _scopes(brokers: Brokers, table: JoinedTable, number: int | None) -> tuple[list[Scope], int]:
    """Which events each view includes by now, and how many keys are parked in the partition."""
    parked = [parked_keys(brokers, part) for part in table.every]
    scopes = [present_scope(brokers, part, some) for part, some in zip(table.every, parked, strict=True)]
    return scopes, count_in(number, chain(*parked))


def _folded(
    spark: SparkSession,
    brokers: Brokers,
    part: FoldedTable,
    scope: Scope,
    since: Positions,
    archive: Archive | None,
    chosen: Sample | None,
    *,
    whole: bool,
) -> DataFrame:
    """A view's STATES by key. whole: of a sample, all keys of its partition."""
    events = events_of(spark, brokers, part, scope, archive, chosen, whole=whole)
    return folds.states(events, part, since=since).frame.select("partition", "key", *Part._fields)


def _judged(rows: DataFrame, every: Sequence[DataFrame], table: JoinedTable) -> DataFrame:
    """Per task how many keys agree and differ, then a line each for the first that differ.

    every: the parts, then the references, which are small: each task is given all of them.
    """
    parts, references = every[: len(table.parts)], every[len(table.parts) :]
    named = [
        part.select("partition", "key", *(F.col(name).alias(f"{name}_{index}") for name in Part._fields))
        for index, part in enumerate(parts)
    ]
    of_key = reduce(lambda some, more: some.join(more, ["partition", "key"], "full_outer"), named, rows)
    told = [_told(each) for each in references]
    return of_key.mapInArrow(partial(judge, table.package, table.table.name, told), _VERDICTS)


def _told(reference: DataFrame) -> Told:
    told: dict[int, dict[bytes, Part]] = defaultdict(dict)
    for number, key, *part in rows_of(reference.toArrow().to_batches()):
        told[number][key] = Part(*part)
    return told


def judge(package: str, name: str, told: Sequence[Told], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    table = join_in(package, name)
    agree = 0
    found: list[tuple[Any, ...]] = []
    differ = 0
    for number, key, row, *columns in rows_of(batches):
        width = len(Part._fields)
        parts = [Part(*columns[start : start + width]) for start in range(0, len(columns), width)]
        if row is None and not any(part.sequence or part.problem for part in parts):
            continue  # its first event came after the rows were read
        unlike = difference(table, key, row, parts, [each.get(number, {}) for each in told])
        agree += unlike is None
        differ += unlike is not None
        if unlike is not None and len(found) < REASONS_A_TASK:
            found.append((0, 0, key, *unlike))
    yield from as_batches([(agree, differ, None, None, None, None), *found], _VERDICTS)


def difference(
    table: JoinedTable,
    key: bytes,
    row: bytes | None,
    parts: Sequence[Part],
    referred: Sequence[Mapping[bytes, Part]] = (),
) -> Difference | None:
    """Why `row` is not the join of what its parts were at the sequences that it states; None when it is.

    referred: what it may refer to, of each reference by key.
    """
    if broken := _broken(table.parts, parts):
        return broken
    versions = [_versions(each, part) for each, part in zip(table.parts, parts, strict=True)]
    if row is None:
        had_ended = all(any(not version.sequence for version in some) for some in versions)
        return None if had_ended else Difference(f"no row, but {sum(part.sequence or 0 for part in parts)} events")
    try:
        live = table.row_codec.decode(row)
    except ValidationError as error:
        return Difference(f"its row can't be read: {first_problem(error)}")
    names = [name for name, _ in table.join.parts]
    candidates = [_candidates(name, some, live) for name, some in zip(names, versions, strict=False)]
    # of a view whose row has ended meanwhile and begun again, several states have that sequence
    told: Difference | None = None
    for made_of in _combined(candidates):
        if isinstance(made_of, Difference):
            return made_of
        keys = table.keys_of(made_of[0])
        of_keys = [known.get(each or b"", _NOTHING) for each, known in zip(keys, referred, strict=True)]
        if broken := _broken(table.references, of_keys):
            return broken
        some = zip(names[len(parts) :], table.references, of_keys, strict=True)
        for more in _combined([_candidates(name, _versions(each, part), live) for name, each, part in some]):
            unlike = more if isinstance(more, Difference) else _unlike(table, key, live, [*made_of, *more])
            if unlike is None:
                return None
            told = told or unlike
    return told


def _broken(tables: Sequence[FoldedTable], parts: Sequence[Part]) -> Difference | None:
    problems = ((each.table.name, part.problem) for each, part in zip(tables, parts, strict=True) if part.problem)
    return next((Difference(f"events of {name} cannot be folded: {problem}") for name, problem in problems), None)


def _versions(table: FoldedTable, part: Part) -> list[Version]:
    return table.versions(part.sequence or 0, [part.state or to_json(table.initial), *(part.later or ())])


def _candidates(name: str, versions: Sequence[Version], live: Row[Any]) -> list[bytes | None] | Difference:
    """The rows, encoded, that `live` may have been made of, as it calls the table."""
    at, offset = live.made_of.get(name, (0, -1))  # not named: it had no row
    states = dict.fromkeys(version.state for version in versions if version.sequence == at)
    if states:
        return [_row(at, state, offset) if at else None for state in states]
    first, last = versions[0].sequence, versions[-1].sequence
    reached = f"had gone on to {first}" if at < first else f"end at {last}"
    why = f"it was made of {name} at sequence {at}, whose events {reached}"
    return Difference(why, to_json(live.state).decode())


def _combined(
    candidates: Sequence[list[bytes | None] | Difference],
) -> Iterator[tuple[bytes | None, ...] | Difference]:
    """One of each; or the first for which there is none."""
    wrong = next((each for each in candidates if isinstance(each, Difference)), None)
    yield from [wrong] if wrong else product(*(each for each in candidates if not isinstance(each, Difference)))


def _row(sequence: int, state: bytes, offset: int) -> bytes:
    return b'{"sequence":%d,"state":%b,"outcomes":{},"offset":%d}' % (sequence, state, offset)


def _unlike(table: JoinedTable, key: bytes, live: Row[Any], made_of: Sequence[bytes | None]) -> Difference | None:
    try:
        expected = table.row(key, made_of)
    except Exception as error:  # whatever it is, it concerns this key, and the others go on
        return Difference(f"its rows cannot be joined: {type(error).__name__}: {error}", to_json(live.state).decode())
    if expected is None:
        return Difference("none of its views had a row any more", to_json(live.state).decode())
    shown, joined = to_json(live.state), to_json(expected.state)
    if canonical(from_json(shown)) != canonical(from_json(joined)):
        return Difference(f"its state differs at sequence {live.sequence}", shown.decode(), joined.decode())
    if live.sequence != expected.sequence:
        return Difference(f"it is at sequence {live.sequence}, its rows add up to {expected.sequence}", shown.decode())
    return None
