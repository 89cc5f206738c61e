"""Verbs of other packages: this process becomes theirs, with the arguments as they are."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Sequence

import typer

from shared.dev import here
from shared.dev.stages import StageFailed

ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}

cli = typer.Typer()


@cli.command(context_settings=ANY_ARGUMENTS, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure this checkout on this machine; `bench --help` says what can be measured."""
    become("bench", context.args)


@cli.command(context_settings=ANY_ARGUMENTS, add_help_option=False)
def parity(context: typer.Context) -> None:
    """Recompute live tables from their events on Spark and compare them key by key."""
    _on_spark("parity", context.args)


@cli.command(context_settings=ANY_ARGUMENTS, add_help_option=False)
def archive(context: typer.Context) -> None:
    """Copy new events into Delta tables that outlive the topics' retention."""
    _on_spark("archive", context.args)


@cli.command(context_settings=ANY_ARGUMENTS, add_help_option=False)
def rebuild(context: typer.Context) -> None:
    """Fill the next version of a service's tables from history, on Spark."""
    _on_spark("rebuild", context.args)


@cli.command(context_settings=ANY_ARGUMENTS, add_help_option=False)
def backfill(context: typer.Context) -> None:
    """Import rows of CSV or Parquet into a service, as history or as commands, on Spark."""
    _on_spark("backfill", context.args)


@cli.command(context_settings=ANY_ARGUMENTS, add_help_option=False)
def rejects(context: typer.Context) -> None:
    """Show which rows the last backfill rejected, by reason."""
    become("pipelines", ["rejects", *context.args])


@cli.command(context_settings=ANY_ARGUMENTS, add_help_option=False)
def insights(context: typer.Context) -> None:
    """Count revenue, retention and segments of customers on Spark."""
    _on_spark("insights", context.args)


def _on_spark(verb: str, arguments: Sequence[str]) -> None:
    try:
        if not any(re.match("--bootstrap(=|$)", each) for each in arguments):  # else it names other brokers than `up`'s
            here.join_up()
    except StageFailed as failure:
        typer.echo(str(failure), err=True)
        raise typer.Exit(2) from None  # 1: done, but something is wrong in what was found
    become("pipelines", [verb, *arguments])


def become(package: str, arguments: Sequence[str]) -> None:
    sys.argv = [package, *arguments]
    runpy.run_module(package, run_name="__main__", alter_sys=True)
