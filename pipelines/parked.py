"""Records of a view's source that are in no row: parked by the engine, or discarded by an operator."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipelines import sources
from pipelines.catalog import FoldedTable
from shared.es.row import RowCodec
from shared.kafka.history import History
from shared.parking import Parked, Wish, partition_of_id

Place = tuple[int, int]
"""Partition and offset."""

_CODEC: RowCodec[Parked] = RowCodec(Parked)


def parked_keys(spark: SparkSession, history: History, table: FoldedTable) -> list[Parked]:
    """What waits before it can go into `table`, a key each. The engine parks under the table's name."""
    records = sources.whole(spark, history, table.topology.changelog(table.topology.parked).name)
    rows = (_CODEC.decode(bytes(row.row)).state for row in sources.latest(records).collect())
    return [parked for parked in rows if parked.processor == table.table.name]


def discarded(spark: SparkSession, history: History, table: FoldedTable) -> list[Place]:
    """What operators dropped of the records for `table`."""
    wishes = []
    for record in sources.whole(spark, history, table.topology.parking.name).collect():
        with suppress(ValueError):  # the engine has made a dead letter of it
            wishes.append(Wish.model_validate_json(bytes(record.value)))
    return [
        (partition_of_id(wish.id), wish.offset)
        for wish in wishes
        if wish.action == "discard" and wish.offset is not None and wish.id.startswith(f"{table.table.name}/")
    ]


def without(records: DataFrame, places: Iterable[Place]) -> DataFrame:
    """The other records, in the same order."""
    named = [f"{partition}/{offset}" for partition, offset in places]
    place = F.concat_ws("/", F.col("partition").cast("string"), F.col("offset").cast("string"))
    return records.where(~place.isin(named)) if named else records
