"""How fast a worker that has lost its disk restores its rows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.begin import Begin
from bench.lab import Input, Lab
from bench.race import ENGINE, START_DEADLINE_S, STOCK_FAUST, Side, check_alive, follow, peers, start
from bench.report import Figure, Report, Result
from bench.speed import Load
from bench.topology import PARTITIONS
from shared.dev.stages import Stage, StageFailed
from shared.kafka.offsets import Offsets
from shared.runtime.positions import Place

STOP_DEADLINE_S = 30.0
FEWER = 5
"""How many times fewer events the pair with stock Faust has, which would take minutes for all."""
PATIENT_FAUST = replace(STOCK_FAUST, limit_s=300.0)  # it must restore as much as the engine beside it
_TICK_S = 0.1


def restore(lab: Lab, begin: Begin, load: Load) -> Report:
    """How soon a table is back in an empty RocksDB, one with few keys and one with many.

    Each other has a run of ours beside it, of the same input, and the ratio compares the seconds. On few keys its
    changelog is longer than ours: stock Faust writes a record for every event, Kafka Streams for every row of a commit,
    we for every row of a batch.
    """
    report = Report()
    others = [(PATIENT_FAUST, max(1, load.events // FEWER))]
    others += [(peer, load.events) for peer in peers(report, "kafka_streams_eos")]
    for suffix, keys in load.widths:
        inputs = [(other, lab.events(begin, count, min(keys, count))) for other, count in others]
        _beside(lab, begin, load.rounds, inputs, suffix, report)
    return report


def _beside(
    lab: Lab, begin: Begin, rounds: int, inputs: Sequence[tuple[Side, Input]], suffix: str, report: Report
) -> None:
    lanes = [(side, source) for other, source in inputs for side in (other, ENGINE)]
    found: list[list[tuple[int, float]]] = [[] for _ in lanes]
    for number in range(1, rounds + 1):
        for (side, source), seen in zip(lanes, found, strict=True):
            with begin(f"restore {side.name} {number}/{rounds}") as now:
                records, seconds = lose_and_restore(lab, side, source, now)
                seen.append((records, seconds))
                now.done = f"{records:,} changelog records in {seconds:.2f} s"
    for (other, source), theirs, ours in zip(inputs, found[::2], found[1::2], strict=True):
        beside = f"engine_beside_{other.name}"
        report.results += [_result(other.name + suffix, source, theirs), _result(beside + suffix, source, ours)]
        ratio = median(their_s / our_s for (_, their_s), (_, our_s) in zip(theirs, ours, strict=True))
        report.ratios[f"restore_vs_{other.name.removesuffix('_eos')}{suffix}"] = ratio


def _result(name: str, source: Input, seen: Sequence[tuple[int, float]]) -> Result:
    """records: how many changelog records were restored, at the least. took_s: the longest."""
    rates = [records / seconds for records, seconds in seen]
    figures: dict[str, Figure] = {
        "records_per_s": median(rates),
        "records": min(records for records, _ in seen),
        "keys": source.keys,
        "rounds": [round(rate, 1) for rate in rates],
        "took_s": round(max(seconds for _, seconds in seen), 2),
    }
    return Result(f"restore_{name}", figures)


def lose_and_restore(lab: Lab, side: Side, source: Input, now: Stage) -> tuple[int, float]:
    """Fold, stop, delete the local state, start again. Returns how many changelog records took how long."""
    worker = start(lab, side, source)
    follow(lab, side, worker, source, now)
    os.kill(worker.pid, signal.SIGTERM)
    worker.await_end(STOP_DEADLINE_S)
    shutil.rmtree(lab.settings.data_dir)
    lab.settings.data_dir.mkdir()
    sizes = _sizes(lab, f"{worker.service}-sales-changelog")
    told = worker.log.stat().st_size
    worker.spawn()
    began = time.monotonic()
    lines = 1 if side is PATIENT_FAUST else sum(1 for size in sizes if size)
    while len(found := list(_restored(worker.log, told))) < lines:
        check_alive(worker)
        if time.monotonic() - began > START_DEADLINE_S:
            raise StageFailed(f"{side.name} has not restored its table", "see its log", worker.log)
        time.sleep(_TICK_S)
    worker.kill()
    return sum(sizes), max(found)


def _sizes(lab: Lab, topic: str) -> list[int]:
    places = [Place(topic, partition) for partition in range(PARTITIONS)]
    offsets = Offsets(lab.settings.bootstrap)
    starts, ends = offsets.starts(places), offsets.ends(places)
    return [ends[place] - starts[place] for place in places]


def _restored(log: Path, start: int) -> Iterator[float]:
    """The seconds that each line about a restored partition states; the last line may not be complete yet."""
    with log.open() as lines:
        lines.seek(start)
        for line in lines:
            if '"event": "restored"' in line and line.endswith("\n"):
                yield json.JSONDecoder().raw_decode(line, line.index("{"))[0]["took_s"]  # Faust has its own beginning
