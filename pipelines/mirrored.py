"""The next version of an aggregate's tables on a cluster that another was mirrored to, folded from what arrived there.

A mirror copies each partition by itself, with new offsets: rows and positions of the first cluster mean nothing here.
What holds is that every partition has a prefix of its records, in their order. That is enough: the events give the
state, and which commands they came from. Commands after the last of those are decided here, as they were there. What
policies send in answer to the events, and what did not arrive, is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from pipelines import sources
from pipelines.arrow import as_batches, rows_of
from pipelines.catalog import FoldedTable, answering_in, policies_in, service_in
from pipelines.events import records_below
from pipelines.rebuild import Plan, Rebuild
from shared.domain.outcomes import OUTCOME_CODEC, key_of, row_of
from shared.domain.row import UNKNOWN_BODY, Outcome
from shared.kafka.brokers import Positions
from shared.kafka.transactions import Record
from shared.parking.parked import OperatorRequest
from shared.topology.topics import Topic

# the field with the id of the command that a record is, or came from
_ID_IN = {"commands": "command_id", "timers": "command_id", "events": "causation_id"}
_COMMAND = ["partition", "key", "command_id"]  # an id is one aggregate's
_OUTCOMES = "partition int, key binary, value binary, at long"
_SENT = (
    "policy int, partition int, source binary, offset long, index int, "
    "topic string, key binary, command_id string, body binary"
)
# a policy sends to each key in the order of the events of each key
_IN_ORDER = ["policy", "partition", "source", "topic", "key"]


class MirroredRebuild(Rebuild):
    """Needs the commands and events of the service and its neighbours, and that nobody writes them meanwhile."""

    def _positions(self) -> dict[str, Positions]:
        brokers = self._brokers
        views = {table.events.name for table in self._tables if table.is_view}
        positions = {topic: brokers.settled_ends(topic) for topic in views | self._reacted_to()}
        positions |= {topic: self._not_due(topic) for topic in self._timers()}
        return positions | {table.table.source.name: self._undecided(table) for table in self._aggregates()}

    def _still_holds(self, plan: Plan) -> bool:
        return self._ends() == plan.ends  # the positions follow from the events, and take long to find

    def _records(self, plan: Plan, ends: Mapping[str, Positions]) -> Iterator[Record]:
        yield from (*self._unsent(plan), *self._all_ended(plan), *self._policies_begin(plan, {}, ends))

    def _stands(self, plan: Plan) -> Mapping[str, Positions]:
        return plan.positions

    def _reacted_to(self) -> set[str]:
        return {each.source.name for each in answering_in(self._package)}

    def _timers(self) -> list[str]:
        return [topic.name for topic in self._new.topics if topic.kind == "timers"]

    def _read_to_the_end(self) -> set[str]:
        return {table.events.name for table in self._aggregates()}

    def _notes(self) -> tuple[OperatorRequest, ...]:
        return ()  # they name the first cluster's offsets

    def _undecided(self, table: FoldedTable) -> Positions:
        """The first command after those whose events have arrived; the end where commands lag behind their events.

        Commands that retention has removed led to the first events, those that have not arrived to the last. A retried
        dead letter leads to an event behind those of later commands.
        """
        topic = table.table.source.name
        command = sources.field("causation_id").alias("command_id")
        causes = self._all(table.events.name).select("partition", "key", command, F.col("offset").alias("event"))
        causes = causes.where("command_id IS NOT NULL").join(self._first(topic), _COMMAND, "left")
        of_last_event = F.max_by("offset", "event").alias("of_last")  # null if it is not there
        reached = causes.groupBy("partition").agg(F.max("offset").alias("at"), of_last_event).where("at IS NOT NULL")
        ends = self._brokers.settled_ends(topic)
        known = {row.partition: ends[row.partition] if row.of_last is None else row.at + 1 for row in reached.collect()}
        return self._brokers.starts(topic) | known

    def _not_due(self, topic: str) -> Positions:
        """The first timer after those whose commands have arrived, here or at a neighbour.

        All timers are sent again to a neighbour with another number of partitions: one of them arrives without another.
        """
        starts = self._brokers.starts(topic)
        commands = [each.name for each in self._exchanged() if each.kind == "commands"]
        alike = [each for each in commands if self._brokers.starts(each).keys() == starts.keys()]
        if not alike:
            return starts
        sent = reduce(DataFrame.unionByName, [self._first(each) for each in alike]).drop("offset")
        reached = (
            self._first(topic).join(sent, _COMMAND, "left_semi").groupBy("partition").agg(F.max("offset").alias("at"))
        )
        return starts | {row.partition: row.at + 1 for row in reached.collect()}

    def _first(self, topic: str) -> DataFrame:
        """The offset of each command; of repeats the first: a later one may follow commands that nobody has decided."""
        commands = self._all(topic).select("partition", "key", "offset", sources.field("command_id"))
        return commands.groupBy(*_COMMAND).agg(F.min("offset").alias("offset"))

    def _unsent(self, plan: Plan) -> list[Record]:
        """What policies send in answer to the mirrored events, without what has arrived or taken effect.

        Nor what precedes that: see `_missing`.
        """
        sent = [self._sent(plan, number) for number in range(len(policies_in(self._package)))]
        if not sent:
            return []
        known = [
            self._all(topic.name).select(sources.field(_ID_IN[topic.kind]).alias("command_id"))
            for topic in self._exchanged()
        ]
        union = partial(reduce, DataFrame.unionByName)
        marked = union(sent).join(union(known).distinct().withColumn("known", F.lit(True)), "command_id", "left")
        late = [number for number, policy in enumerate(policies_in(self._package)) if not policy.from_start]
        ordered = _missing(marked, late).orderBy("policy", "partition", "offset", "index").collect()
        return [Record(row.topic, bytes(row.key), bytes(row.body)) for row in ordered]

    def _sent(self, plan: Plan, number: int) -> DataFrame:
        source = policies_in(self._package)[number].source.name
        starts, ends = self._brokers.starts(source), plan.positions[source]
        events = sources.topic(self._spark, self._brokers.bootstrap, source, starts, ends)
        return events.then(partial(_answers, self._package, number), _SENT).frame

    def _exchanged(self) -> set[Topic]:
        """The commands and events of the service, and those that it exchanges with its neighbours."""
        return {each for each in (*self._new.topics, *service_in(self._package).neighbours) if each.kind in _ID_IN}

    def _all(self, topic: str) -> DataFrame:
        """With what only an archive has of its own events."""
        kept = next((self._archive(table) for table in self._aggregates() if table.events.name == topic), None)
        if kept is None:
            return sources.whole(self._spark, self._brokers, topic).frame
        return records_below(self._spark, self._brokers, topic, self._brokers.settled_ends(topic), kept).frame

    def _taken_over(self, plan: Plan, table: FoldedTable, numbers: Sequence[int], states: DataFrame) -> DataFrame:
        """From the events alone: no changelog of the first cluster is here."""
        row = F.format_string('{"sequence":%d,"outcomes":{},"offset":-1}', "sequence").cast("binary")
        return states.select("partition", "key", row.alias("row"))

    def _outcomes(self, plan: Plan) -> DataFrame:
        """From the events alone, too: of commands that took effect."""
        caused_by, sequence = sources.field("causation_id"), sources.field("sequence").cast("long")
        at = F.unix_millis("timestamp").alias("at")
        caused = [
            self._all(table.events.name).select("partition", "key", caused_by, sequence, at)
            for table in self._aggregates()
        ]
        commands = reduce(DataFrame.unionByName, caused).where("causation_id IS NOT NULL")
        last = [F.max(name).alias(name) for name in ("sequence", "at")]
        each = commands.groupBy("partition", "key", "causation_id").agg(*last)
        return each.mapInArrow(_decided, _OUTCOMES)


def _missing(marked: DataFrame, late: Sequence[int]) -> DataFrame:
    """Commands that are to be sent. marked: all of them, `known` those that have arrived. late: the policies that begin
    at the present.

    Not what precedes one that has arrived: retention has removed it since. A reservation, sent again after it was
    shipped, would stay for ever. Nor, of a policy that began at the present, what precedes all of its commands from a
    partition that have arrived: it had not begun there.
    """
    place = F.struct("offset", "index")
    reached = F.max(F.when(F.col("known"), place)).over(Window.partitionBy(*_IN_ORDER))
    begun = F.min(F.when(F.col("known"), F.col("offset"))).over(Window.partitionBy("policy", "partition"))
    each = marked.withColumns({"reached": reached, "begun": begun})
    behind = each.where(F.col("reached").isNull() | (place > F.col("reached")))
    if not late:
        return behind
    return behind.where(~F.col("policy").isin(*late) | (F.col("offset") >= F.col("begun")))


def _decided(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """_OUTCOMES of the commands that events came from: their bodies are not known, only that they took effect."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for partition, key, command, sequence, at in rows_of(batches):
            accepted = Outcome(command, sequence, None, None, UNKNOWN_BODY)
            yield partition, key_of(key.decode(), command), OUTCOME_CODEC.encode(row_of(accepted, at, -1)), at

    yield from as_batches(rows(), _OUTCOMES)


def _answers(package: str, number: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the policy with this number sends for each event; nothing for one that it cannot answer."""
    policy = policies_in(package)[number]

    def rows() -> Iterator[tuple[Any, ...]]:
        for partition, offset, _, source, value in rows_of(batches):
            with suppress(Exception):  # not an event that the policy answers, or one parked as a dead letter
                for index, sent in enumerate(list(policy.sends(value))):
                    yield number, partition, source, offset, index, sent.topic, sent.key, sent.command_id, sent.body

    return as_batches(rows(), _SENT)
