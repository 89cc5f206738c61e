"""`sink`: fills the database tables of a service, says how far they are, checks them, and swaps their versions."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated

import typer

from shared.dev import here
from shared.dev.stages import StageFailed, stage
from shared.kafka.brokers import Brokers
from shared.privacy.sealing import sealer
from shared.runtime.declared import declared, declared_by
from shared.runtime.settings import Settings, load_settings
from shared.sinks.database import Database, DatabaseUnavailable, Differences, Fenced, Positions
from shared.sinks.parity import check
from shared.sinks.process import database_of, run
from shared.sinks.sink import Sink
from shared.topology.topics import Topology

CATCH_UP_S = 10.0  # how long a table may take to get what is committed when it is to be shown
PAUSE_S = 0.1
SHOWN = 10  # keys of rows that differ

cli = typer.Typer(name="sink", no_args_is_help=True, help="Keep tables of a database like those of a service.")

Service = Annotated[str, typer.Argument(help="With a sinks.py.")]


@cli.command("run")
def run_(service: Service) -> None:
    """Fill the tables of SERVICE's sinks until Ctrl-C. Any number of these may run; each sink is filled by one."""
    topology, sinks = _declared(service)
    here.join_up()
    run(topology, sinks, load_settings())


@cli.command()
def status(service: Service) -> None:
    """Show who fills each table, how many offsets it is behind, which version the view shows, and why one waits."""
    topology, sinks = _declared(service)
    here.join_up()
    settings = load_settings()
    brokers = Brokers(settings.bootstrap)
    with closing(database_of(settings)) as database:
        for sink in sinks:
            print(f"{sink.table.name}  {_told(database, brokers, sink, topology)}")


@cli.command()
def show(
    service: Service, table: Annotated[str, typer.Argument(help="With its version, such as accounts_v2.")]
) -> None:
    """Let the view show this version of a table, newer or older, once it has all that is committed now."""
    topology, sinks = _declared(service)
    here.join_up()
    settings = load_settings()
    sink = _named(table, sinks)
    with closing(database_of(settings)) as database:
        _await_all(database, Brokers(settings.bootstrap), sink, sink.source.topic_in(topology))
        database.show(sink)
    print(f"{sink.name} shows {table}")


@cli.command("parity")
def parity_(
    service: Service,
    table: Annotated[str | None, typer.Argument(help="Such as accounts_v2; all by default.")] = None,
) -> None:
    """Compute tables again from their topics and compare them row by row. Exits with 1 if one differs."""
    topology, sinks = _declared(service)
    here.join_up()
    settings = load_settings()
    brokers, agree = Brokers(settings.bootstrap), True
    with closing(database_of(settings)) as database:
        for sink in [_named(table, sinks)] if table else sinks:
            topic = sink.source.topic_in(topology)
            _await_all(database, brokers, sink, topic)
            found = _check(sink, topic, database, brokers, settings)
            agree &= not found.keys
    if not agree:
        raise typer.Exit(1)


def _check(sink: Sink, topic: str, database: Database, brokers: Brokers, settings: Settings) -> Differences:
    """Shows how far it is, and what it has found."""
    with stage("parity", sink.table.name, sys.stdout) as now:

        def tell(read: int, total: int) -> None:
            now.progress(read, total, f"offsets, {read / max(now.seconds, 0.1):,.0f}/s;")

        found = check(sink, topic, database, brokers, tell, sealer(settings) if sink.opens else None)
        agree = f"{found.rows - len(found.keys):,} of {found.rows:,} rows are what it makes of {topic}"
        now.done = agree
        if found.keys:
            first = ", ".join("/".join(map(str, key)) for key in found.keys[:SHOWN])
            more = f" and {len(found.keys) - SHOWN:,} more" if len(found.keys) > SHOWN else ""
            now.done = f"DIFFERS: {agree}; not {first}{more}"
    return found


def _declared(service: str) -> tuple[Topology, Sequence[Sink]]:
    """Raises Undeclared."""
    sinks = declared_by(service, "sinks")
    return declared(f"services.{service}", "service", "SERVICE").topology, sinks


def _told(database: Database, brokers: Brokers, sink: Sink, topology: Topology) -> str:
    try:
        found = database.state(sink)
    except Fenced as unknown:
        return str(unknown)
    except DatabaseUnavailable as away:
        return f"the database gives no answer: {away}"
    behind = _behind(brokers.settled_ends(sink.source.topic_in(topology)), found.positions)
    waits = f"; waits: {found.waits}" if found.waits else ""
    owner, shown = found.lease.owner or "nobody", ", shown" if found.shown else ""
    return f"{behind} offsets behind, filled by {owner}{shown}{waits}"


def _await_all(database: Database, brokers: Brokers, sink: Sink, topic: str) -> None:
    """Until the table has what is committed as of this call. Raises StageFailed, and Fenced."""
    ends, ids, deadline = brokers.settled_ends(topic), brokers.topic_ids([topic]), time.monotonic() + CATCH_UP_S
    while True:
        found = database.state(sink)
        if found.topic != topic or found.topic_id not in ids:
            other = f"{sink.table.name} was filled from {found.topic} with the id {found.topic_id}, which is no more"
            raise StageFailed(other, "raise `version` of the sink")
        if not (behind := _behind(ends, found.positions)):
            return
        if time.monotonic() > deadline:
            raise StageFailed(f"{sink.table.name} is {behind} offsets behind", "let `sink run` fill it, then try again")
        time.sleep(PAUSE_S)


def _behind(ends: Positions, positions: Positions) -> int:
    """In offsets, of which some have no record."""
    return sum(max(0, end - positions[partition]) for partition, end in ends.items())


def _named(table: str, sinks: Sequence[Sink]) -> Sink:
    for sink in sinks:
        if sink.table.name == table:
            return sink
    raise StageFailed(f"no sink is called {table}", f"name one of: {', '.join(sink.table.name for sink in sinks)}")
