"""How many events a second: ours beside the others, deciding beside folding, and with ever more keys and events."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from bench.begin import Begin
from bench.lab import Input, Lab
from bench.race import ENGINE, STOCK_FAUST, follow, our_side, peers, race, start
from bench.report import Report, Result
from shared.dev.stages import Stage

ENGINE_RAW = our_side("engine_raw", "raw")
DECIDE = our_side("decide", "decide")


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured. Few keys change often within a batch; of many, each changes about once.

    rate: commands a second.
    """

    events: int
    keys: int
    wide_keys: int
    rounds: int
    rate: int = 300

    @property
    def widths(self) -> tuple[tuple[str, int], ...]:
        """(what a figure's name ends with, how many keys)"""
        return ("", self.keys), ("_wide", self.wide_keys)


def engine(lab: Lab, begin: Begin, load: Load) -> Report:
    """The engine beside stock Faust, Quix Streams and Kafka Streams, on few keys and on many."""
    report = Report()
    with begin("peers"):
        others = [STOCK_FAUST, *peers(report, "quix_eos", "kafka_streams_eos")]
    for suffix, keys in load.widths:
        source = lab.events(begin, load.events, keys)
        lanes = [(each, source) for each in (*others, ENGINE_RAW, ENGINE)]
        *theirs, raw, typed = race(lab, lanes, load.rounds, begin)
        report.results += [standing.result(suffix) for standing in (*theirs, raw, typed)]
        for prefix, ours in (("", typed), ("raw_", raw)):
            for other in theirs:
                report.ratios[f"{prefix}engine_vs_{other.side.name}{suffix}"] = ours.ratio_to(other)
    return report


def decide(lab: Lab, begin: Begin, load: Load) -> Report:
    """Command, decision, event, row and outcome, beside Kafka Streams and the fold of as many events."""
    report = Report()
    with begin("peers"):
        others = peers(report, "kafka_streams_eos", work="decide")
    for suffix, keys in load.widths:
        events, commands = lab.events(begin, load.events, keys), lab.commands(begin, load.events, keys)
        lanes = [(ENGINE, events), *((each, commands) for each in (*others, DECIDE))]
        folding, *theirs, deciding = race(lab, lanes, load.rounds, begin)
        report.results += [folding.result(f"_beside_decide{suffix}"), deciding.result(suffix)]
        report.results += [each.result(f"_decides{suffix}") for each in theirs]
        report.ratios[f"decide_vs_fold{suffix}"] = deciding.ratio_to(folding)
        for each in theirs:
            report.ratios[f"decide_vs_{each.side.name}{suffix}"] = deciding.ratio_to(each)
    return report


def growth(lab: Lab, begin: Begin, load: Load) -> Report:
    """The fold with up to as many keys as events; then on few keys, with a tenth to ten times the events."""
    count = load.events
    many = [lab.events(begin, count, max(1, keys)) for keys in (count // 100, count // 10, count)]
    few = [lab.events(begin, max(1, events), load.keys) for events in (count // 10, count, count * 10)]
    standings = race(lab, [(ENGINE, source) for source in (*many, *few)], load.rounds, begin)
    report = Report([each.result(f"_{each.source.count}_events_{each.source.keys}_keys") for each in standings])
    report.ratios["most_events_vs_fewest"] = standings[-1].ratio_to(standings[-3])
    return report


def scale(lab: Lab, begin: Begin, load: Load) -> Report:
    """The fold by one worker and by two, beside the broker on the same cores."""
    report = Report()
    for suffix, keys in load.widths:
        source = lab.events(begin, load.events, keys)
        rates: dict[int, list[float]] = {1: [], 2: []}
        for number in range(1, load.rounds + 1):
            for count, seen in rates.items():
                with begin(f"{count} workers {number}/{load.rounds}") as now:
                    seen.append(_together(lab, source, count, now))
                    now.done = f"{seen[-1]:,.0f} events/s"
        report.results += [
            Result(f"engine_by_{count}{suffix}", {"events_per_s": median(seen), "workers": count, "keys": keys})
            for count, seen in rates.items()
        ]
        report.ratios[f"two_workers_vs_one{suffix}"] = median(
            two / one for one, two in zip(rates[1], rates[2], strict=True)
        )
    return report


def _together(lab: Lab, source: Input, count: int, now: Stage) -> float:
    """Events a second, folded by as many workers of one group."""
    first = start(lab, ENGINE, source)
    command = ENGINE.command(first.service, source)
    others = [lab.spawn(first.service, command, number) for number in range(2, count + 1)]
    rate = follow(lab, ENGINE, first, source, now).events_per_s
    for worker in (first, *others):
        worker.kill()
    return rate
