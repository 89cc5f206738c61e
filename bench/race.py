"""Sides doing the same work on the same topic, one after another, round by round."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.begin import Begin
from bench.lab import Input, Lab
from bench.progress import Group, Sample, Steady, steady
from bench.report import Figure, Result
from bench.topology import PARTITIONS, engine_topology
from shared.dev.stages import Stage, StageFailed

START_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Side:
    """Something that folds. limit_s: a slow side is watched for so long and need not reach the end."""

    name: str
    module: str
    work: str = ""
    limit_s: float = 600.0
    owns_topics: bool = True

    def command(self, service: str, source: Input) -> list[str]:
        variables = {"BENCH_SERVICE": service, "BENCH_SOURCE": source.topic.name, "BENCH_WORK": self.work}
        faust = [sys.executable, "-m", "faust", "-A", self.module, "worker", "--without-web", "-l", "warn"]
        return ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items()), *faust]


ENGINE = Side("engine", "bench.sides.engine", "fold")
STOCK_FAUST = Side("stock_faust", "bench.sides.stock_faust", limit_s=20.0, owns_topics=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """A side's rounds, in their order."""

    side: Side
    rounds: Sequence[Steady]

    @property
    def rates(self) -> list[float]:
        return [each.events_per_s for each in self.rounds]

    def result(self, source: Input) -> Result:
        figures: dict[str, Figure] = {
            "events_per_s": median(self.rates),
            "keys": source.keys,
            "rounds": [round(rate, 1) for rate in self.rates],
            "measured_s": [round(each.seconds, 1) for each in self.rounds],
        }
        return Result(self.side.name, figures)

    def ratio_to(self, other: Standing) -> float:
        """The median of what neighbours in time say: noise that lasts longer than a round cancels out."""
        return median(mine / theirs for mine, theirs in zip(self.rates, other.rates, strict=True))


def race(lab: Lab, sides: Sequence[Side], source: Input, rounds: int, begin: Begin) -> dict[str, Standing]:
    """The sides, alternating."""
    found: dict[str, list[Steady]] = {side.name: [] for side in sides}
    for number in range(1, rounds + 1):
        for side in sides:
            service = f"{side.name.replace('_', '-')}-{source.keys}-{number}"
            with begin(f"{side.name} {number}/{rounds}") as now:
                measured = run(lab, side, service, source, now)
                now.done = f"{measured.events_per_s:,.0f} events/s over {measured.seconds:.1f} s"
            found[side.name].append(measured)
    return {side.name: Standing(side, found[side.name]) for side in sides}


def run(lab: Lab, side: Side, service: str, source: Input, now: Stage) -> Steady:
    """One side, started anew, from the topic's start to its end or to the side's limit."""
    if side.owns_topics:
        lab.provision([engine_topology(service, source.topic)])
    group = Group(lab.settings.bootstrap, service, source.topic.name, PARTITIONS)
    process = lab.spawn(service, side.command(service, source))
    seen: list[Sample] = []

    def check() -> None:
        if process.exit_code is not None:
            raise StageFailed(f"{side.name} ended with {process.exit_code}", "mend what its log says", process.log)
        if len(seen) < 2 and now.seconds > START_DEADLINE_S:
            raise StageFailed(f"{side.name} has not begun after {now.seconds:.0f} s", "see its log", process.log)

    for sample in group.samples(source.count, side.limit_s, check):
        seen.append(sample)
        now.progress(sample.handled, source.count, f"events, {steady(seen, source.count).events_per_s:,.0f}/s")
    process.kill()
    return steady(seen, source.count)
