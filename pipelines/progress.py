"""How far Spark is, for a person to watch: in a terminal Spark's own bar, elsewhere a line every ten seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

EVERY_S = 10.0


def has_bar() -> bool:
    """Whether Spark draws its bar, as pipelines.session lets it."""
    return sys.stderr.isatty()


@contextmanager
def reporting_progress(spark: SparkSession, verb: str) -> Iterator[None]:
    """Says how many tasks of the running step are done, while the block runs. How many steps follow, nobody knows."""
    ended = threading.Event()
    teller = threading.Thread(target=_tell, args=(spark, verb, ended), name="progress", daemon=True)
    if not has_bar():
        teller.start()
    try:
        yield
    finally:
        ended.set()
        if teller.ident is not None:
            teller.join()


def _tell(spark: SparkSession, verb: str, ended: threading.Event) -> None:
    tracker, began = spark.sparkContext.statusTracker(), time.monotonic()
    with suppress(Py4JError):  # Spark has died, and the verb says so
        while not ended.wait(EVERY_S):
            found = map(tracker.getStageInfo, tracker.getActiveStageIds())
            stages = [stage for stage in found if stage is not None]
            if stages:
                done, total = sum(each.numCompletedTasks for each in stages), sum(each.numTasks for each in stages)
                _say(f"{verb}: {done} of {total} tasks of this step ({time.monotonic() - began:.0f} s so far)")


def _say(line: str) -> None:
    typer.echo(line, err=True)
