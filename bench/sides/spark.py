"""A rebuild of the next version, from the topic to the new changelog; its times and memory as a line of JSON.

python -m bench.sides.spark BOOTSTRAP SERVICE SOURCE CORES MEMORY PARTITIONS [archived]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.topology import engine_topology
from pipelines.archive import Archive
from pipelines.catalog import tables_in
from pipelines.rebuild import Done, Rebuild
from pipelines.session import spark_session
from shared.kafka.brokers import Brokers, Positions
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from shared.topology.topics import Topic

_PAUSE_S = 0.5


class Forgetful(Brokers):
    """As after retention: of `source`, records are in the archive only."""

    source = ""

    def starts(self, topic: str) -> Positions:
        return self.settled_ends(topic) if topic == self.source else super().starts(topic)


def main(
    bootstrap: str, service: str, source: str, cores: str, memory: str, partitions: str, archived: str = ""
) -> None:
    began = time.monotonic()
    brokers, topic = Forgetful(bootstrap), Topic(source)
    topology = engine_topology(service, topic, int(partitions))
    (declared,) = tables_in("bench")
    table = replace(declared, topology=topology, table=topology.tables[0], events=topic)
    brokers.commit(topology.group, {source: brokers.settled_ends(source)})  # as if a first version had read it all
    folded_at: list[float] = []

    def note(done: Done, count: int, total: int, took_s: float) -> None:
        folded_at.append(time.monotonic())

    session = spark_session("bench", cores=int(cores), memory=memory)
    with tempfile.TemporaryDirectory() as work, _peak_mb() as peak, session as spark:
        started, kept = time.monotonic(), Archive(spark, f"{work}/archive", service, source)
        if archived:
            kept.extend(brokers)
            brokers.source = source
        took, started = time.monotonic() - started, time.monotonic()
        build = Rebuild(spark, brokers, [table], 2, Path(work), lambda _: kept if archived else None)
        provision([topology, build.topology], Settings(bootstrap=bootstrap))
        rows = build.run(note)
        ended = time.monotonic()
    told = {
        "start_s": started - began - took,
        "fold_s": folded_at[-1] - started,
        "write_s": ended - folded_at[-1],
        "total_s": ended - began - took,
        "rows": rows,
        "peak_mb": peak[0],
        **({"archive_s": took} if archived else {}),
    }
    sys.stdout.write(json.dumps(told) + "\n")


@contextmanager
def _peak_mb() -> Iterator[list[float]]:
    """The most that this process and all below it held at once: the driver, its JVM and the Python workers."""
    peak, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(_PAUSE_S):
            peak[0] = max(peak[0], _held_mb())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    yield peak
    over.set()
    watcher.join()


def _held_mb() -> float:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,rss="], capture_output=True, text=True, check=True).stdout
    children, resident = defaultdict(list), {}
    for pid, parent, rss in (map(int, line.split()) for line in listed.splitlines()):
        children[parent].append(pid)
        resident[pid] = rss
    mine = [os.getpid()]
    for pid in mine:
        mine += children[pid]
    return sum(_share_kb(pid, resident[pid]) for pid in mine) / 1024


def _share_kb(pid: int, resident: int) -> int:
    """Of what several processes share, its part, where the kernel tells; else all."""
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return resident
    return next((int(line.split()[1]) for line in told.splitlines() if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
