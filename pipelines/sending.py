"""Rows of a file as commands of a running service, which decides them like all others.

A command's id follows from its aggregate, the row's `id` and the rule, so a row takes effect once, however often it is
sent: the service knows the id for its `idempotency_hours`, and what had events is known by them for ever. Those are
left out before anything is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from pipelines import sources
from pipelines.arrow import as_batches, rows_of
from pipelines.backfill import (
    APART,
    INVALID,
    STRICT,
    Backfill,
    Entered,
    Judged,
    check_made,
    data_of,
    decoded,
    having,
    reasons_in,
    utc,
    write_rejects,
)
from pipelines.catalog import table_in
from pipelines.sinks import refuse_unshared
from shared.domain.decider import Decider
from shared.domain.envelope import CommandCodec
from shared.domain.errors import OnefoldError
from shared.domain.ids import CALLERS, check_aggregate_id, derived_id
from shared.domain.row import UNKNOWN_BODY
from shared.domain.step import fingerprint
from shared.domain.times import CLOCKS_DIFFER
from shared.kafka.brokers import Positions
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import CommandProducer

_COMMANDS = "partition int, key binary, sequence long, nth int, id string, digest string, value binary, reason string"
_AT_ONCE = 2_000  # commands that wait to be decided, so that a caller's own waits for no more than those
_SILENT_S = 60.0
_PAUSE_S = 0.05
_CHANGED = "row.changed"
_UNDECIDED = "command.undecided"
_REUSED = "a row with this `id` was sent before with other values; fix: correct either, or let `id` tell them apart"
_NO_ANSWER = "it is parked, or a bug met it; fix: see the service's dead letters"


class NotDecided(OnefoldError):
    """No worker decides the commands, or not all of them.

    Operator action: start the service's workers, then send the file again: what was decided is not decided twice.
    """


class Sending(Backfill):
    """Sends rows as commands of a service whose workers run."""

    def run(self, rows: DataFrame, rejects: str) -> Entered:
        """rejects: as of a backfill; code: that of the refusal. `written` are the commands that are accepted.

        A row whose commands are not all valid sends none of them; no row stops another.
        Raises BadMapping, NotDecided, SendError, FolderNotShared, HistoryIncomplete, AnotherLog or BrokersUnavailable.
        """
        self._refuse_mapping(rows)
        if not self._brokers.members(self._table.topology.group):
            fix = "start its workers, then run this again"
            raise NotDecided(f"no worker of {self._table.topology.group} runs, to decide what is sent; fix: {fix}")
        refuse_unshared(self._spark, rejects)
        with having(self._spark, APART):
            judged = self._judged(rows, self._ends())
            sent = judged.missing.drop("known", "reason").cache()
            before = self._brokers.settled_ends(self._outcomes)
            self._send(sent)
            decided = self._decided(sent, before).cache()
            refused = decided.where("code IS NOT NULL").groupBy("key", "nth")
            first = F.min_by(F.struct("reason", "code"), "sequence").alias("first")
            why = refused.agg(first).select("key", "nth", "first.*", F.lit(True).alias("own"))
            rejected = judged.rejected.unionByName(_rejected(judged.numbered, why)).cache()
            write_rejects(rejected, rejects)
            accepted = decided.where("code IS NULL")
            new = accepted.where("is_new").select("key", "id").distinct().count()
            known = judged.good.count() - sent.count() + accepted.count() - new
            left_out = rows.count() - judged.numbered.count()
            return Entered(new, known, rejected.count(), left_out, reasons_in(rejected))

    @property
    def _outcomes(self) -> str:
        """The changelog of what became of commands."""
        topology = self._table.topology
        assert topology.outcomes is not None
        return topology.changelog(topology.outcomes).name

    def _refuse_mapping(self, rows: DataFrame) -> None:
        decider = self._table.pure
        assert isinstance(decider, Decider), "it is an aggregate's table"
        self._refuse_expressions(rows, decider.commands)

    def _judged(self, rows: DataFrame, ends: Positions) -> Judged:
        with having(self._spark, STRICT):
            numbered = self._numbered(rows).cache()
            made = self._made(numbered)
        latest = datetime.now(UTC) + CLOCKS_DIFFER
        encode = partial(_encode, self._table.package, self._table.table.name, self._table.topology.partitions, latest)
        commands = made.select("__key", "nth", "number", "wrong", "__id", "at", "type", "version", "data", "of")
        commands = commands.mapInArrow(encode, _COMMANDS).cache()
        reasons = commands.where("reason IS NOT NULL").groupBy("key", "nth")
        why = reasons.agg(F.min_by("reason", "sequence").alias("reason"))
        told = why.withColumns({"code": F.lit(INVALID), "own": F.lit(True)})
        good = commands.join(why.select("key", "nth"), ["key", "nth"], "left_anti")
        good = good.join(self._causes(good, ends), ["key", "id"], "left")
        return Judged(numbered, good, _rejected(numbered, told))

    def _causes(self, commands: DataFrame, ends: Positions) -> DataFrame:
        """The commands that the events of these keys followed from: key, id, known."""
        found = self._history_of(commands, ends).frame.select("key", sources.field("causation_id").alias("id"))
        return found.distinct().withColumn("known", F.lit(True))

    def _send(self, commands: DataFrame) -> None:
        """In the order of each key, and a row of every key before the next of any."""
        topic = self._table.table.source.name
        producer = CommandProducer(self._brokers.bootstrap, [self._table.topology])
        waiting = commands.orderBy("sequence", "key").select("partition", "key", "value").toLocalIterator()
        with asyncio.Runner() as runner:
            while some := list(islice(waiting, _AT_ONCE)):
                self._await_decided(topic, runner.run(_append(producer, topic, some)))

    def _await_decided(self, topic: str, ends: Positions) -> None:
        group, seen, since = self._table.topology.group, Positions(), time.monotonic()
        while True:
            positions = self._brokers.positions(group).get(topic, {})
            if all(positions.get(partition, 0) >= end for partition, end in ends.items()):
                return
            if positions != seen:
                seen, since = positions, time.monotonic()
            if time.monotonic() > since + _SILENT_S:
                fix = "start its workers, then run this again: nothing takes effect twice"
                raise NotDecided(f"{group} decides nothing any more, and not all of what was sent; fix: {fix}")
            time.sleep(_PAUSE_S)

    def _decided(self, sent: DataFrame, before: Positions) -> DataFrame:
        """sent, with: code and reason of the refusal, null if accepted, is_new: whether this run had it decided.

        before: the ends of the outcomes' changelog when nothing was sent yet.
        """
        sent = sent.withColumn("outcome", F.concat("key", F.lit(b"\0"), F.col("id").cast("binary")))
        fresh = sent.join(self._outcomes_from(before), "outcome", "left").withColumn("is_new", F.lit(True)).cache()
        if not (repeated := fresh.where("fingerprint IS NULL")).isEmpty():
            earlier = repeated.select(*sent.columns).join(
                self._outcomes_from(self._brokers.starts(self._outcomes)), "outcome", "left"
            )
            fresh = fresh.where("fingerprint IS NOT NULL").unionByName(earlier.withColumn("is_new", F.lit(False)))
        unknown = F.col("fingerprint").isNull()
        changed = (F.col("fingerprint") != UNKNOWN_BODY) & (F.col("fingerprint") != F.col("digest"))
        return fresh.withColumns(
            {
                "reason": F.when(unknown, _NO_ANSWER).when(changed, _REUSED).otherwise(F.coalesce("detail", F.lit(""))),
                "code": F.when(unknown, _UNDECIDED).when(changed, _CHANGED).otherwise(F.col("code")),
            }
        )

    def _outcomes_from(self, starts: Positions) -> DataFrame:
        """What the changelog has from there on: outcome: its key, fingerprint, code, detail."""
        ends = self._brokers.settled_ends(self._outcomes)
        rows = sources.latest(sources.topic(self._spark, self._brokers.bootstrap, self._outcomes, starts, ends))
        fields = (sources.field(name) for name in ("fingerprint", "code", "detail"))
        return rows.select(F.col("key").alias("outcome"), F.col("row").alias("value")).select("outcome", *fields)


def _rejected(numbered: DataFrame, why: DataFrame) -> DataFrame:
    keyed = numbered.select(F.col("__key").alias("key"), "nth", F.col("__source").alias("source"))
    return keyed.join(why, ["key", "nth"]).drop("nth")


async def _append(producer: CommandProducer, topic: str, commands: Sequence[Any]) -> Positions:
    """The ends, by partition, behind all of them. Raises SendError."""
    sends = (producer.send(topic, bytes(each.key), bytes(each.value), each.partition) for each in commands)
    ends = Positions()
    for partition, offset in await asyncio.gather(*sends):
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return ends


def _encode(
    package: str, name: str, partitions: int, latest: datetime, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    codec = table_in(package, name).pure.command_codec  # type: ignore[union-attr]

    def rows() -> Iterator[tuple[Any, ...]]:
        for key, nth, number, wrong, row_id, *fields in rows_of(batches):
            try:
                if wrong is not None:
                    raise ValueError(wrong)
                id_, value, digest = command(codec, check_aggregate_id(key.decode()), row_id, latest, *fields)
                yield partition_of(key, partitions), key, number, nth, id_, digest, value, None
            except ValueError as error:
                yield None, key, number, nth, None, None, None, str(error)

    return as_batches(rows(), _COMMANDS)


def command(
    codec: CommandCodec[Any],
    key: str,
    row_id: str,
    latest: datetime,
    at: datetime | None,
    type_: str | None,
    version: int | None,
    data: str | None,
    of: int,
) -> tuple[str, bytes, str]:
    """Its id, its record and its fingerprint. latest: that it may be dated. Raises ValueError."""
    at = check_made(type_, at)
    if at > latest:
        raise ValueError("`at` is in the future, and what is decided has happened")
    command_id = CALLERS + derived_id("backfill", key, str(type_), str(of), row_id)  # which is a caller's, too
    fields = {
        "command_id": command_id,
        "type": type_,
        "schema_version": version,
        "aggregate_id": key,
        "issued_at": utc(at),
        "correlation_id": command_id,
        "data": data_of(data),
    }
    envelope = decoded(codec, fields)
    return command_id, codec.encode(envelope), fingerprint(envelope.data)
