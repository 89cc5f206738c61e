"""How many events a second: ours beside the others, deciding beside folding, and with ever more keys and events."""

from __future__ import annotations

from dataclasses import dataclass

from bench.begin import Begin
from bench.lab import Lab
from bench.race import ENGINE, STOCK_FAUST, peers, race
from bench.race import engine as side
from bench.report import Report

ENGINE_RAW = side("engine_raw", "raw")
DECIDE = side("decide", "decide")


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured. Few keys change often within a batch; of many, each changes about once."""

    events: int
    keys: int
    wide_keys: int
    rounds: int


def engine(lab: Lab, begin: Begin, load: Load) -> Report:
    """The engine beside stock Faust, Quix Streams and Kafka Streams, on few keys and on many."""
    report = Report()
    with begin("peers"):
        others = [STOCK_FAUST, *peers(report, "quix_eos", "kafka_streams_eos")]
    for suffix, keys in (("", load.keys), ("_wide", load.wide_keys)):
        source = lab.events(begin, load.events, keys)
        lanes = [(each, source) for each in (*others, ENGINE_RAW, ENGINE)]
        *theirs, raw, typed = race(lab, lanes, load.rounds, begin)
        report.results += [standing.result(suffix) for standing in (*theirs, raw, typed)]
        for prefix, ours in (("", typed), ("raw_", raw)):
            for other in theirs:
                report.ratios[f"{prefix}engine_vs_{other.side.name}{suffix}"] = ours.ratio_to(other)
    return report


def decide(lab: Lab, begin: Begin, load: Load) -> Report:
    """Command, decision, event, row and outcome, beside the fold of as many events."""
    report = Report()
    for suffix, keys in (("", load.keys), ("_wide", load.wide_keys)):
        commands = lab.commands(begin, load.events, keys)
        lanes = [(ENGINE, lab.events(begin, load.events, keys)), (DECIDE, commands)]
        folding, deciding = race(lab, lanes, load.rounds, begin)
        report.results += [folding.result(f"_beside_decide{suffix}"), deciding.result(suffix)]
        report.ratios[f"decide_vs_fold{suffix}"] = deciding.ratio_to(folding)
    return report


def growth(lab: Lab, begin: Begin, load: Load) -> Report:
    """The fold with up to as many keys as events, and with up to all events on few keys."""
    most = load.events
    sizes = [(most, keys) for keys in (most // 100, most // 10, most)] + [(most // 10, load.keys), (most, load.keys)]
    lanes = [(ENGINE, lab.events(begin, events, max(1, keys))) for events, keys in sizes]
    standings = race(lab, lanes, load.rounds, begin)
    return Report([each.result(f"_{each.source.count}_events_{each.source.keys}_keys") for each in standings])
