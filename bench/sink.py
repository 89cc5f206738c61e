"""How many rows a second a sink writes into PostgreSQL, which keeps each commit as in production."""

from __future__ import annotations

import sys
import time
from contextlib import closing, suppress
from statistics import median

from bench.begin import Begin
from bench.lab import Input, Lab
from bench.race import check_alive, cpu_s
from bench.report import Figure, Report, Result
from bench.sides.sink import EACH, LATEST, sink_of
from bench.speed import Load
from shared.dev.postgres import Postgres
from shared.dev.stages import StageFailed
from shared.sinks.database import Database, DatabaseUnavailable, Fenced

_GOAL = 50_000  # rows a second
_DEADLINE_S = 600.0
_TICK_S = 0.05


def sink(lab: Lab, begin: Begin, load: Load) -> Report:
    """A row for each event, and a row for each of many keys, which later ones replace."""
    report = Report()
    source = lab.events(begin, load.events, load.wide_keys)
    for name in (EACH, LATEST):
        rates: list[float] = []
        costs: list[float] = []
        for number in range(1, load.rounds + 1):
            with begin(f"sink {name} {number}/{load.rounds}") as now:
                rate, cost = _filled(lab, source, name)
                rates.append(rate)
                costs.append(cost)
                now.done = f"{rates[-1]:,.0f} events/s"
        rounds = [round(rate, 1) for rate in rates]
        figures: dict[str, Figure] = {"events_per_s": median(rates), "events": source.count, "rounds": rounds}
        figures["cpu_us"] = round(median(costs), 1)
        report.results.append(Result(f"sink_{name}", figures))
        report.ratios[f"sink_{name}_vs_goal"] = round(median(rates) / _GOAL, 3)
    return report


def _filled(lab: Lab, source: Input, name: str) -> tuple[float, float]:
    """Events a second that become rows of an empty table, from its first transaction to its last; and what the sink's
    process spends on one, in µs of CPU, its start included.
    """
    with Postgres.temporary(options=()) as server, closing(Database(server.url)) as database:
        command = [sys.executable, "-m", "bench.sides.sink", source.topic.name, name]
        side = lab.spawn(lab.service(name), ["/usr/bin/env", f"ONEFOLD_SINK_DATABASE={server.url}", *command])
        began, first, deadline = 0.0, 0, time.monotonic() + _DEADLINE_S
        while (done := _done(database, source, name)) < source.count:
            check_alive(side)
            if done and not first:
                began, first = time.monotonic(), done
            if time.monotonic() > deadline:
                raise StageFailed(f"sink {name} has not ended", "see its log", side.log)
            time.sleep(_TICK_S)
        rate = (source.count - first) / (time.monotonic() - began)
        cost = cpu_s(side.pid) / source.count * 1e6
        side.kill()
        return rate, cost


def _done(database: Database, source: Input, name: str) -> int:
    with suppress(DatabaseUnavailable, Fenced):  # its tables are not there yet
        return sum(database.state(sink_of(source.topic, name)).positions.values())
    return 0
