"""The next version of an aggregate's tables on a cluster that others were mirrored to, folded from what arrived there.

A mirror copies each partition by itself and numbers it anew: rows and positions of the first cluster mean nothing here.
What holds is that every partition has the first of its records, in their order. That is enough: the events say the
state, and which commands they came from. Commands behind the last of those are decided here, as they were there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec

import pyarrow as pa
from pydantic_core import to_json
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from pipelines import sources
from pipelines.arrow import as_batches, rows_of
from pipelines.catalog import FoldedTable
from pipelines.parked import Counted
from pipelines.rebuild import Plan, Rebuild
from shared.es.errors import OnefoldError
from shared.es.row import UNKNOWN_BODY, Outcome, Row
from shared.kafka.history import Positions

_SCHEMA = pa.schema([("key", pa.binary()), ("row", pa.binary())])


class NotFromFactsAlone(OnefoldError):
    """The service has policies: what they sent and what did not arrive is not known from its own facts.

    Operator action: read in docs/operations/failover.md what cannot fail over.
    """


class MirroredRebuild(Rebuild):
    """Needs the commands and the events of the service, and nobody who writes them meanwhile."""

    def _positions(self) -> dict[str, Positions]:
        package = self._tables[0].package
        if find_spec(f"{package}.policies"):
            raise NotFromFactsAlone(f"{package} has policies")
        history = self._history
        views = {table.events.name for table in self._tables if table.is_view}
        positions = {topic: history.settled_ends(topic) for topic in views}
        if self._new.history is not None:
            positions[self._new.history.name] = history.starts(self._new.history.name)
        return positions | {table.table.source.name: self._undecided(table) for table in self._aggregates()}

    def _folded_topics(self) -> set[str]:
        return {table.events.name for table in self._aggregates()}

    def _count(self, table: FoldedTable) -> Counted:
        return Counted({}, ())  # what operators wished is said in the first cluster's offsets

    def _write_wishes(self) -> None:
        pass

    def _undecided(self, table: FoldedTable) -> Positions:
        """The first command behind those whose events arrived; the end where the commands arrived later than them."""
        topic, history = table.table.source.name, self._history
        commands = sources.whole(self._spark, history, topic).select("partition", "offset", _said("command_id"))
        events = sources.whole(self._spark, history, table.events.name)
        causes = events.select("partition", _said("causation_id").alias("command_id")).dropna().distinct()
        # the first of each: a repeat may lie behind commands that nobody has decided
        first = commands.groupBy("partition", "command_id").agg(F.min("offset").alias("offset"))
        reached = (
            causes.join(first, ["partition", "command_id"], "left")
            .groupBy("partition")
            .agg((F.max("offset") + 1).alias("next"), F.bool_and(F.col("offset").isNotNull()).alias("all_arrived"))
        )
        ends = history.settled_ends(topic)
        known = {row.partition: row.next if row.all_arrived else ends[row.partition] for row in reached.collect()}
        return history.starts(topic) | known

    def _taken_over(self, plan: Plan, table: FoldedTable, number: int, records: DataFrame) -> DataFrame:
        caused = records.select("key", _said("causation_id"), _said("sequence").cast("long").alias("sequence"))
        return caused.mapInArrow(_decided, "key binary, row binary")


def _said(field: str) -> Column:
    return F.get_json_object(F.col("value").cast("string"), f"$.{field}").alias(field)


def _decided(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each key's row without a state: the latest commands that its events came from."""
    rows: dict[bytes, Row[None]] = {}
    for key, command, sequence in rows_of(batches):
        row = rows.get(key, Row(0, None, {}, -1))
        accepted = Outcome(command, sequence, None, None, UNKNOWN_BODY)
        rows[key] = row._replace(sequence=sequence) if command is None else row.after(accepted, None, -1)
    yield from as_batches(((key, to_json(row._asdict())) for key, row in rows.items()), _SCHEMA)
