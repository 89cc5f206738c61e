"""A rebuild on Spark beside replaying the same events through the engine and through stock Faust."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product

from bench.begin import Begin
from bench.lab import Input, Lab
from bench.race import ENGINE, STOCK_FAUST, race
from bench.report import Report, Result
from bench.speed import Load
from bench.topology import PARTITIONS
from shared.dev.stages import StageFailed
from shared.runtime.checkout import CHECKOUT

MEMORY, MEMORY_ARCHIVED = "4g", "2g"  # the latter as that of all processes is to stay below 4 GiB
MANY_PARTITIONS = 64
GROWTH = (1, 10, 30)
_SHOWN_CHARACTERS = 2_000


def spark(lab: Lab, begin: Begin, load: Load) -> Report:
    """A tenth of the events, all, ten times as many, and all on one core. A rebuild's time begins before Spark does."""
    cores = os.cpu_count() or 1
    counts = (load.events // 10, load.events, 10 * load.events)
    tenth, whole, tenfold = (lab.events(begin, count, load.keys) for count in counts)
    report = Report([_rebuild(lab, begin, tenth, cores), _rebuild(lab, begin, whole, 1)])
    ours = {source.count: _rebuild(lab, begin, source, cores) for source in (whole, tenfold)}
    report.results += ours.values()
    for standing in race(lab, [(STOCK_FAUST, whole), (ENGINE, whole), (ENGINE, tenfold)], 1, begin):
        size = f"{standing.source.count:.0e}".replace("e+0", "e")
        report.results.append(standing.result(f"_beside_rebuild_{size}"))
        beside = _rate(ours[standing.source.count])
        report.ratios[f"rebuild_vs_{standing.side.name}_{size}"] = beside / standing.rates[0]
    return report


def archived(lab: Lab, begin: Begin, load: Load) -> Report:
    """Rebuilds from an archive of all the events, of ten and of thirty times as many, in few partitions and in many.

    Each topic is deleted before the next one is written: the disk has to hold one, its archive, and what Spark sorts.
    """
    report = Report()
    for factor, partitions in product(GROWTH, (PARTITIONS, MANY_PARTITIONS)):
        source = lab.events(begin, factor * load.events, load.keys, partitions)
        report.results.append(_rebuild(lab, begin, source, os.cpu_count() or 1, archived=True))
        lab.delete(source)
    return report


def _rebuild(lab: Lab, begin: Begin, source: Input, cores: int, *, archived: bool = False) -> Result:
    """archived: as if the topic had only the end of it. How long archiving takes is apart."""
    with begin(f"rebuild, cores: {cores}{f', from an archive of {source.partitions} partitions' * archived}") as now:
        place = [lab.settings.bootstrap, lab.service("rebuilt"), source.topic.name]
        memory = MEMORY_ARCHIVED if archived else MEMORY
        side = [sys.executable, "-P", "-m", "bench.sides.spark", *place, str(cores), memory]
        side += [str(source.partitions), *(["archived"] if archived else [])]
        environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
        run = subprocess.run(side, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
        if run.returncode != 0:
            raise StageFailed(f"the rebuild failed: {run.stderr[-_SHOWN_CHARACTERS:]}", "resolve what it says")
        told: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
        rate = source.count / told["total_s"]
        now.done = f"{rate:,.0f} events/s over {told['total_s']:.1f} s, {told['peak_mb']:,.0f} MB at most"
    figures = {"events_per_s": rate, "events": source.count, "keys": source.keys, "cores": cores, **told}
    if archived:
        return Result(f"archived_{source.count}_{source.partitions}_partitions", figures)
    return Result(f"rebuild_{source.count}_events_{cores}_cores", figures)


def _rate(result: Result) -> float:
    rate = result.figures["events_per_s"]
    assert isinstance(rate, float)
    return rate
