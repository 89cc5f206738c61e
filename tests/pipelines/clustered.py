"""A history on a cluster of two executors, where tasks that read or write a topic die once and are run again.

Executors import it, too, so it is no program by itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark import TaskContext

from pipelines import sinks, sources
from pipelines.archive import Archive
from pipelines.backfill import Backfill, read_mapping, read_rows
from pipelines.catalog import table_of
from pipelines.files import find
from pipelines.rebuild import Rebuild
from pipelines.session import spark_session
from services.accounts.topology import COMMANDS, EVENTS
from shared.kafka import appending
from shared.kafka.brokers import Brokers
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from tests.pipelines.conftest import forget

_append: Any = sinks._append
_read: Any = sources._read
appending.AT_ONCE = 3


def append_and_die(*given: Any) -> Iterator[pa.RecordBatch]:
    yield from _append(*given[:-1], _dying(given[-1]))


def read_and_die(*given: Any) -> Iterator[pa.RecordBatch]:
    yield from _dying(_read(*given))


def _dying(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    first = context is not None and context.attemptNumber() == 0
    for batch in batches:
        yield batch.slice(0, 7) if first else batch
        if first:
            raise RuntimeError("this task dies")


def main(bootstrap: str, folder: Path) -> None:
    """Fills accounts from `rows.csv` by `mapping.toml`, archives them and rebuilds them from the archive alone."""
    brokers, accounts = Brokers(bootstrap), table_of("accounts", "accounts")
    topology, settings = accounts.topology, Settings(bootstrap=bootstrap)
    provision([topology], settings)
    brokers.commit(topology.group, {COMMANDS.name: brokers.starts(COMMANDS.name)})
    dying = patch.object(sinks, "_append", append_and_die), patch.object(sources, "_read", read_and_die)
    with dying[0], dying[1], spark_session("clustered", master="local-cluster[2,1,1024]") as spark:
        fill = Backfill(spark, brokers, accounts, read_mapping(folder / "mapping.toml"))
        filled = fill.run(read_rows(spark, find(str(folder / "rows.csv"))), str(folder / "rejects"))
        archive = Archive(spark, str(folder / "archive"), "accounts", EVENTS.name)
        archived = archive.extend(brokers).records
        forget(bootstrap, EVENTS.name)
        build = Rebuild(spark, brokers, [accounts], 2, folder / "work", archive=lambda _: archive)
        provision([build.topology], settings)
        rebuilt = build.run(lambda *_: None)
        of_each = archive.records().groupBy("key").count().collect()
        broken = [*archive.broken_sequences()]
        executors = spark.sparkContext._jsc.sc().statusStore().executorList(True)
        died = sum(executors.apply(number).failedTasks() for number in range(executors.size()))
    told = {
        "written": filled.written,
        "archived": archived,
        "rebuilt": rebuilt,
        "broken": broken,
        "died": died,
        "events": {bytes(row.key).decode(): row["count"] for row in of_each},
    }
    sys.stdout.write(json.dumps(told) + "\n")
