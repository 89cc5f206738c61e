"""How many events a second, ours beside the others."""

from __future__ import annotations

from dataclasses import dataclass

from bench.begin import Begin
from bench.lab import Lab
from bench.race import ENGINE, STOCK_FAUST, race
from bench.report import Report


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    events: int
    keys: int
    rounds: int


def engine(lab: Lab, begin: Begin, load: Load) -> Report:
    """The engine, transactions and RocksDB on, beside what it replaces: a stock Faust agent with a table."""
    with begin("input") as now:
        source = lab.events(load.events, load.keys, now)
        now.done = f"{load.events:,} typed events over {load.keys:,} keys"
    standings = race(lab, [STOCK_FAUST, ENGINE], source, load.rounds, begin)
    ours, stock = standings[ENGINE.name], standings[STOCK_FAUST.name]
    return Report(
        [standing.result(source) for standing in standings.values()],
        {"engine_vs_stock_faust": ours.ratio_to(stock)},
    )
