"""Sides, each folding its input from start to end in a process of its own, one after another, round by round."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.begin import Begin
from bench.lab import Input, Lab
from bench.peers import PeerMissing, kafka_streams, quix
from bench.progress import Group, Sample, Steady, steady
from bench.report import Figure, Report, Result
from bench.topology import PARTITIONS, engine_topology
from shared.dev.stages import Stage, StageFailed
from shared.dev.worker import Worker

START_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Side:
    """Something that folds. limit_s: a slow side is watched for so long and need not reach the end.

    provisioned: its topics are made for it, as for a service of ours; others make their own.
    """

    name: str
    start: Sequence[str]
    work: str = ""
    limit_s: float = 600.0
    provisioned: bool = False

    def command(self, service: str, source: Input) -> list[str]:
        variables = {"BENCH_SERVICE": service, "BENCH_SOURCE": source.topic.name, "BENCH_WORK": self.work}
        return ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items()), *self.start]


def _faust(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "faust", "-A", module, "worker", "--without-web", "-l", "info")


def our_side(name: str, work: str) -> Side:
    """A worker of ours. work: see bench.sides.engine."""
    return Side(name, _faust("bench.sides.engine"), work, provisioned=True)


ENGINE = our_side("engine", "fold")
STOCK_FAUST = Side("stock_faust", _faust("bench.sides.stock_faust"), limit_s=10.0)
PEERS = {"quix_eos": quix, "kafka_streams_eos": kafka_streams}


def peers(report: Report, *names: str, work: str = "") -> list[Side]:
    """Those of the named that can be built here; the report notes the others. work: other than to fold."""
    found = []
    for name in names:
        try:
            found.append(Side(name, PEERS[name](), work, provisioned=bool(work)))
        except PeerMissing as reason:
            report.notes.append(f"{name} is left out: {reason}")
    return found


@dataclass(frozen=True, slots=True)
class Round:
    """resident_mb: the memory of the side's process at the end."""

    measured: Steady
    resident_mb: float


@dataclass(frozen=True, slots=True)
class Standing:
    """A side's rounds, in their order."""

    side: Side
    source: Input
    rounds: Sequence[Round]

    @property
    def rates(self) -> list[float]:
        return [each.measured.events_per_s for each in self.rounds]

    def result(self, suffix: str = "") -> Result:
        figures: dict[str, Figure] = {
            "events_per_s": median(self.rates),
            "keys": self.source.keys,
            "events": self.source.count,
            "rounds": [round(rate, 1) for rate in self.rates],
            "measured_s": [round(each.measured.seconds, 1) for each in self.rounds],
            "resident_mb": round(max(each.resident_mb for each in self.rounds), 1),
        }
        return Result(self.side.name + suffix, figures)

    def ratio_to(self, other: Standing) -> float:
        """The median ratio of rounds next to each other in time: noise longer than a round cancels out."""
        return median(mine / theirs for mine, theirs in zip(self.rates, other.rates, strict=True))


def race(lab: Lab, lanes: Sequence[tuple[Side, Input]], rounds: int, begin: Begin) -> list[Standing]:
    """The lanes' sides, alternating."""
    found: list[list[Round]] = [[] for _ in lanes]
    for number in range(1, rounds + 1):
        for (side, source), seen in zip(lanes, found, strict=True):
            with begin(f"{side.name} {number}/{rounds}") as now:
                worker = start(lab, side, source)
                measured = follow(lab, side, worker, source, now)
                seen.append(Round(measured, resident_mb(worker.pid)))
                worker.kill()
                now.done = f"{measured.events_per_s:,.0f} events/s over {measured.seconds:.1f} s"
    return [Standing(side, source, seen) for (side, source), seen in zip(lanes, found, strict=True)]


def start(lab: Lab, side: Side, source: Input) -> Worker:
    """A new run of the side, its worker's `service` being its own."""
    service = lab.service(side.name)
    if side.provisioned:
        lab.provision([engine_topology(service, source.topic)])
    return lab.spawn(service, side.command(service, source))


def follow(lab: Lab, side: Side, worker: Worker, source: Input, now: Stage) -> Steady:
    """Returns when the side has handled the input, or at its limit. The side goes on."""
    group = Group(lab.settings.bootstrap, worker.service, source.topic.name, PARTITIONS)
    seen: list[Sample] = []

    def check() -> None:
        check_alive(worker)
        if len(seen) < 2 and now.seconds > START_DEADLINE_S:
            raise StageFailed(f"{side.name} has not begun after {now.seconds:.0f} s", "see its log", worker.log)

    for sample in group.samples(source.count, side.limit_s, check):
        seen.append(sample)
        now.progress(sample.handled, source.count, f"events, {steady(seen, source.count).events_per_s:,.0f}/s")
    return steady(seen, source.count)


def check_alive(worker: Worker) -> None:
    """Raises StageFailed when it is dead."""
    if worker.exit_code is not None:
        raise StageFailed(f"{worker.name} ended with {worker.exit_code}", "resolve what its log says", worker.log)


def resident_mb(pid: int) -> float:
    found = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(found.stdout) / 1024


def cpu_s(*pids: int) -> float:
    """Seconds of CPU that these processes have had. On Linux."""
    fields = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in pids]
    return sum(int(of[11]) + int(of[12]) for of in fields) / os.sysconf("SC_CLK_TCK")
