"""The verbs of `python -m pipelines`. Exit codes: 0 done, 1 the audit found a difference, 2 it could not be done."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pipelines import parity as auditing
from pipelines.catalog import services, table_of, tables
from pipelines.session import spark_session
from shared.es.errors import OnefoldError
from shared.kafka.history import History
from shared.settings import load_settings

cli = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

Service = Annotated[str, typer.Argument(help="A folder of services/.")]
Bootstrap = Annotated[str | None, typer.Option(help="Brokers; by default ONEFOLD_BOOTSTRAP.")]
Master = Annotated[str | None, typer.Option(help="Spark's master; by default all cores of this machine.")]
Memory = Annotated[str, typer.Option(help="Of Spark's driver, such as 4g.")]


@cli.callback()
def verbs() -> None:
    """What looks at all of history, on Spark."""


@cli.command()
def parity(
    service: Annotated[str | None, typer.Argument(help="A folder of services/; all by default.")] = None,
    table: Annotated[str | None, typer.Argument(help="One of its tables; all by default.")] = None,
    bootstrap: Bootstrap = None,
    url: Annotated[str | None, typer.Option(help="A worker of the service, to compare its answers, too.")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Ask for so many keys only.")] = None,
    master: Master = None,
    memory: Memory = "1g",
) -> None:
    """Recompute live tables from their events and compare them key by key."""
    chosen = [table_of(service, table)] if service and table else [t for s in _chosen(service) for t in tables(s)]
    history = History(bootstrap or load_settings().bootstrap)
    for each in chosen:
        history.partitions(each.changelog)  # before Spark takes its time to start
    with spark_session("parity", master=master, memory=memory) as spark:
        verdicts = [auditing.audit(spark, history, each, url, sample) for each in chosen]
    for verdict in verdicts:
        typer.echo(str(verdict))
    agreed = ", ".join(f"{v.agree:,} of {v.total:,} {v.table}" for v in verdicts)
    if any(verdict.differ for verdict in verdicts):
        typer.echo(f"Spark and the live tables DIFFER: {agreed} agree")
        raise typer.Exit(1)
    typer.echo(f"Spark and the live tables agree: {agreed}")


def _chosen(service: str | None) -> list[str]:
    return [service] if service else services()


def main() -> None:
    """Runs the verb; what an operator can mend is said without a traceback."""
    try:
        cli()
    except OnefoldError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)
