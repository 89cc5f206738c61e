"""What can be measured, in which order, and where the figures go."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from bench.begin import numbered
from bench.callers import callers
from bench.change import change
from bench.cost import cost
from bench.failover import failover
from bench.history import archived, spark
from bench.http import http
from bench.lab import Lab
from bench.lists import lists
from bench.load import load
from bench.parts import parts
from bench.plots import draw
from bench.report import Report
from bench.restore import restore
from bench.sink import sink
from bench.speed import Load, decide, engine, growth, scale
from shared.dev.stages import StageFailed
from shared.domain.errors import OnefoldError

BENCHMARKS = {
    "engine": engine,
    "decide": decide,
    "restore": restore,
    "http": http,
    "growth": growth,
    "scale": scale,
    "parts": parts,
    "spark": spark,
    "archived": archived,
    "failover": failover,
    "load": load,
    "callers": callers,
    "lists": lists,
    "sink": sink,
    "cost": cost,
    "change": change,
}
# these are only run when they are named
APART = ("spark", "archived", "failover", "load", "callers", "lists", "sink", "cost", "change")
_INTERRUPTED = 130

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def known(names: list[str] | None) -> list[str]:
    unknown = set(names or ()) - BENCHMARKS.keys()
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: name any of {', '.join(BENCHMARKS)}")
    return names or [name for name in BENCHMARKS if name not in APART]


@cli.command()
def bench(
    what: Annotated[list[str] | None, typer.Argument(callback=known, help=" ".join(BENCHMARKS))] = None,
    events: Annotated[int, typer.Option(min=1, help="How many events the input has.")] = 1_000_000,
    keys: Annotated[int, typer.Option(min=1, help="Over how many keys they are spread.")] = 1_000,
    wide_keys: Annotated[int, typer.Option(min=1, help="How many keys where they are many.")] = 200_000,
    rounds: Annotated[int, typer.Option(min=1, help="How often each side runs; sides alternate.")] = 1,
    rate: Annotated[int, typer.Option(min=1, help="Commands a second, of `change`.")] = 300,
    json: Annotated[Path | None, typer.Option("--json", help="A file for the figures.")] = None,
    plots: Annotated[Path | None, typer.Option(help="A folder for the figures as SVG.")] = None,
) -> None:
    """Measure this checkout on this machine, beside its peers.

    Without WHAT: all but spark, archived, failover, load, callers, lists, sink, cost and change. If one fails, those
    before it are told.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    begin = numbered()
    report = Report()
    try:
        with Lab() as lab:
            for name in what or ():
                report.add(BENCHMARKS[name](lab, begin, Load(events, keys, wide_keys, rounds, rate)))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except (OnefoldError, StageFailed) as error:
        sys.exit(str(error))
    finally:
        if report.results:
            print(f"\n{report}")
            if json:
                report.write(json)
            if plots:
                draw(report, plots)
