"""Records of a view's source that are in no row: parked by the engine, discarded or skipped by an operator."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipelines import sources
from pipelines.catalog import FoldedTable
from shared.es.row import RowCodec
from shared.kafka.history import History, Positions
from shared.parking import Parked, Wish, partition_of_id

Place = tuple[int, int]
"""Partition and offset."""

_CODEC: RowCodec[Parked] = RowCodec(Parked)


def parked_keys(spark: SparkSession, history: History, table: FoldedTable) -> list[Parked]:
    """What waits before it can go into `table`, a key each. The engine parks under the table's name."""
    records = sources.whole(spark, history, table.topology.changelog(table.topology.parked).name)
    rows = (_CODEC.decode(bytes(row.row)).state for row in sources.latest(records).collect())
    return [parked for parked in rows if parked.processor == table.table.name]


class Counted(NamedTuple):
    """Which records of its source a view is of: those from `starts` on, by partition, that no operator discarded."""

    starts: Positions
    discarded: tuple[Place, ...]


def counted(spark: SparkSession, history: History, table: FoldedTable) -> Counted:
    """As the view was last computed: `reprocess` reads again what was discarded before, and may begin later."""
    starts: Positions = {}
    discarded: list[Place] = []
    for record in sources.whole(spark, history, table.topology.parking.name).collect():
        with suppress(ValueError):  # the engine has made a dead letter of it
            wish = Wish.model_validate_json(bytes(record.value))
            partition = partition_of_id(wish.id)
            if wish.offset is None or not wish.id.startswith(f"{table.table.name}/"):
                continue
            if wish.action == "discard":
                discarded.append((partition, wish.offset))
            if wish.action == "reprocess":
                starts[partition] = wish.offset
                discarded = [place for place in discarded if place[0] != partition]
    return Counted(starts, tuple(discarded))


def within(records: DataFrame, counted: Counted) -> DataFrame:
    """The records that count, in the same order."""
    rest = without(records, counted.discarded)
    if not counted.starts:
        return rest
    starts = F.create_map(*(F.lit(number) for pair in counted.starts.items() for number in pair))
    return rest.where(F.col("offset") >= F.coalesce(starts[F.col("partition")], F.lit(0)))


def without(records: DataFrame, places: Iterable[Place]) -> DataFrame:
    """The other records, in the same order."""
    named = [f"{partition}/{offset}" for partition, offset in places]
    place = F.concat_ws("/", F.col("partition").cast("string"), F.col("offset").cast("string"))
    return records.where(~place.isin(named)) if named else records
