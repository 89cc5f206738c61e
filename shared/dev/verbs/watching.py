"""How the system is, told until one has seen enough: `console` and `watch`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from shared.console.watch import Workers
from shared.dev import console, here
from shared.dev import up as local_stack
from shared.dev.doctor import Diagnosis, diagnose
from shared.runtime.settings import Settings, load_settings
from shared.topology.topics import Topology

cli = typer.Typer()


@cli.command("console")
def console_(
    url: here.WorkerUrls = None,
    port: Annotated[int | None, typer.Option(help="Of the page; by default the first free one from 4400 on.")] = None,
    mend: Annotated[
        bool | None, typer.Option(help="Let the page mend dead letters and swap versions; by default only in dev.")
    ] = None,
) -> None:
    """Show the whole system on one page, live, until Ctrl-C: flow, partitions, rows, events, findings, dead letters."""
    topologies, workers, beside_up = _watched_workers(url)
    settings = load_settings()
    controls = console.WorkersOfUp(local_stack.ROOT) if beside_up and settings.env == "dev" else None
    mends = settings.env == "dev" if mend is None else mend
    examine = partial(_examined, topologies, workers, settings)
    console.show(topologies, workers, examine, settings.bootstrap, port, controls, mends)


@cli.command("watch")
def watch_(url: here.WorkerUrls = None) -> None:
    """Show flow, partitions and findings in this terminal, live, as the page of `console` does, until q."""
    topologies, workers, _ = _watched_workers(url)
    settings = load_settings()
    console.show_in_terminal(topologies, workers, partial(_examined, topologies, workers, settings), settings.bootstrap)


def _watched_workers(url: Sequence[str] | None) -> tuple[list[Topology], Workers, bool]:
    """All services of this checkout, what gives the URLs of workers that run now, and whether `up` is beside."""
    beside_up = here.join_up() is not None
    topologies = here.topologies()
    named = here.named_workers(url or (), [each.service for each in topologies])
    return topologies, lambda: (here.workers_of(here.up_now()) if beside_up else {}) | named, beside_up


def _examined(topologies: Sequence[Topology], workers: Workers, settings: Settings) -> Diagnosis:
    return diagnose(topologies, workers(), settings)
