"""The verbs of `python -m pipelines`. Exit codes: 0 done, 1 problems were found, 2 it could not be done."""

from __future__ import annotations

import re
import shlex
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipelines import answers, consistency, joined, results, sources
from pipelines import backfill as filling
from pipelines.archive import AnotherLog, Archive, ArchiveBehind, ArchiveRestored
from pipelines.catalog import AnyTable, FoldedTable, JoinedTable, UnknownTable, joins, services, table_of, tables
from pipelines.event_columns import event_columns
from pipelines.events import HistoryIncomplete, records_below
from pipelines.files import find
from pipelines.insights import (
    AHEAD,
    LATENESS,
    UNREAD,
    baskets,
    by_segment,
    charges,
    due,
    lines,
    retention,
    revenue_by_day,
    revenue_by_sku_and_cohort,
    segments,
)
from pipelines.mirrored import MirroredRebuild
from pipelines.progress import reporting_progress
from pipelines.rebuild import Done, NothingBefore, Rebuild
from pipelines.sending import Sending
from pipelines.session import spark_session
from shared.domain.errors import OnefoldError
from shared.kafka.brokers import Brokers
from shared.operations.provision import provision
from shared.runtime.settings import load_settings

cli = typer.Typer(
    help="What looks at all of history, on Spark.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Service = Annotated[str | None, typer.Argument(help="A folder of services/; all by default.")]
Bootstrap = Annotated[str | None, typer.Option(help="Brokers; by default ONEFOLD_BOOTSTRAP.")]
ArchiveRoot = Annotated[str | None, typer.Option("--archive", help="Folder or URI of the archive.")]
Master = Annotated[str | None, typer.Option(help="Spark's master; by default all cores of this machine.")]
Memory = Annotated[str, typer.Option(help="Memory of Spark's driver, such as 4g.")]


@cli.command()
def parity(
    service: Service = None,
    table: Annotated[str | None, typer.Argument(help="One of its tables; all by default.")] = None,
    bootstrap: Bootstrap = None,
    archive: ArchiveRoot = None,
    url: Annotated[str | None, typer.Option(help="A worker of the service, to compare its answers, too.")] = None,
    path: Annotated[
        str | None,
        typer.Option(help="With --url: of a row, such as '/accounts/{account_id}', where ONEFOLD_ENV is not dev."),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Compare about so many keys, in one partition at random.")
    ] = None,
    master: Master = None,
    memory: Memory = "1g",
) -> None:
    """Recompute live tables from their events and compare them key by key."""
    if url and not service:
        raise typer.BadParameter("--url is of one service: name it")
    chosen = _chosen(service, table)
    if path and (not url or len(chosen) > 1):
        raise typer.BadParameter("--path is of one table's rows at --url: name the table and --url, too")
    brokers, verdicts = _brokers(bootstrap, [each.changelog for each in chosen]), list[consistency.Verdict]()
    served = _served(url, path, [each.table.name for each in chosen])
    with _spark("parity", master, memory) as spark:

        def options(of: AnyTable) -> dict[str, Any]:
            return {"url": url if of.table.name in served else None, "path": path, "sample": sample}

        found = _verdicts(spark, brokers, chosen, archive, options)
        for each, verdict in zip(chosen, found, strict=True):
            name = verdict.table if service else f"{each.topology.service}/{verdict.table}"
            verdicts.append(replace(verdict, table=name))
            typer.echo(str(verdicts[-1]))
    agreed = ", ".join(f"{v.agree:,} of {v.total:,} {v.table}" for v in verdicts)
    if any(verdict.differ for verdict in verdicts):
        typer.echo(f"Spark and the live tables DIFFER: {agreed} agree")
        raise typer.Exit(1)
    typer.echo(f"Spark and the live tables agree: {agreed}")


@cli.command()
def archive(
    root: Annotated[str, typer.Argument(help="Folder or URI of the archive.")],
    service: Service = None,
    bootstrap: Bootstrap = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the archive with the topic afterwards.")] = False,
    compact: Annotated[bool, typer.Option("--compact", help="Compact small files afterwards.")] = False,
    master: Master = None,
    memory: Memory = "1g",
) -> None:
    """Copy new events into Delta tables, by service and day of occurrence; each record once, whatever dies."""
    chosen = _tables(service)
    topics = dict.fromkeys((each.topology.service, each.events.name) for each in chosen)
    numbered = {(each.topology.service, each.events.name) for each in chosen if not each.is_view}
    brokers = _brokers(bootstrap, [topic for _, topic in topics])
    right = complete = True
    with _spark("archive", master, memory) as spark:
        for name, topic in topics:
            kept = Archive(spark, root, name, topic)
            try:
                typer.echo(f"{topic}: {kept.extend(brokers).records:,} records archived")
            except (AnotherLog, ArchiveBehind, ArchiveRestored) as refusal:  # retention does not wait for the others
                typer.echo(str(refusal), err=True)
                complete = False
                continue
            if not kept.exists():
                continue  # none of the service's topics has a record yet
            if compact:
                before, after = kept.compact()
                typer.echo(f"{topic}: {before:,} files became {after:,}")
            for problem in _problems(kept, brokers, (name, topic) in numbered) if verify else ():
                typer.echo(problem)
                right = False
    if not complete or not right:
        raise typer.Exit(1 if complete else 2)
    if verify:
        typer.echo("The archive and the log agree: no gap, no duplicate")


@cli.command()
def rebuild(
    service: Annotated[str, typer.Argument(help="A folder of services/.")],
    version: Annotated[int | None, typer.Option(min=2, help="By default the one topology.py declares.")] = None,
    bootstrap: Bootstrap = None,
    archive: ArchiveRoot = None,
    mirrored: Annotated[
        bool,
        typer.Option(
            "--mirrored", help="From the events alone: on a second cluster, or where positions were forgotten."
        ),
    ] = False,
    work: Annotated[Path, typer.Option(help="Folder for intermediate results.")] = Path(".onefold/rebuild"),
    master: Master = None,
    memory: Memory = "1g",
) -> None:
    """Fill the next version of a service's tables from history, for its workers to go on from."""
    chosen = _tables(service)
    target = version or chosen[0].topology.version
    if target == 1:
        raise NothingBefore(f"{service} is at version 1: raise `version` in services/{service}/topology.py first")
    brokers = _brokers(bootstrap, [each.events.name for each in chosen])
    with _spark("rebuild", master, memory) as spark:
        build = (MirroredRebuild if mirrored else Rebuild)(
            spark, brokers, chosen, target, work.resolve(), archive=lambda table: _archive(spark, archive, table)
        )
        provision([build.topology], load_settings().model_copy(update={"bootstrap": brokers.bootstrap}))
        rows = build.run(_show)
    typer.echo(f"{build.topology.group}: {rows:,} rows are ready; start its workers")


@cli.command()
def backfill(
    service: Annotated[str, typer.Argument(help="A folder of services/ that has an aggregate.")],
    mapping: Annotated[Path, typer.Argument(help="How rows become events, or commands: a TOML file.")],
    source: Annotated[str, typer.Argument(help="A file or a folder: CSV with a header, or Parquet.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and write nothing.")] = False,
    rejects: Annotated[Path, typer.Option(help="Folder of a table: the rejected rows, and why.")] = Path(
        ".onefold/rejects"
    ),
    bootstrap: Bootstrap = None,
    archive: ArchiveRoot = None,
    master: Master = None,
    memory: Memory = "1g",
) -> None:
    """Import another system's history as events and rows, while no worker of the service runs; or with [[commands]] in
    the mapping, send the rows to its running workers, which decide."""
    table = next((table for table in tables(service) if not table.is_view), None)
    if table is None:
        raise UnknownTable(f"{service} has no aggregate's table")
    rules = filling.read_mapping(mapping)
    found, lookups = find(source, rules), filling.find_lookups(rules)
    brokers = _brokers(bootstrap, [table.events.name])
    with _spark("backfill", master, memory) as spark:
        rows = filling.looked_up(filling.read_rows(spark, found), rules, lookups)
        enter = Sending if rules.commands else filling.Backfill
        fill = enter(spark, brokers, table, rules, _archive(spark, archive, table))
        if dry_run:
            what, topic = ("commands", table.table.source) if rules.commands else ("events", table.events)
            _show_trial(fill.try_out(rows), f"{what} would be written to {topic.name}")
            return
        done = fill.run(rows, str(rejects.resolve()))
    if rules.commands:
        typer.echo(f"{done.written:,} commands accepted by {service}, {done.known:,} were decided before")
    else:
        typer.echo(f"{done.written:,} events written to {table.events.name}, {done.known:,} were there before")
    _show_others(done)
    if done.rejected:
        typer.echo(
            f"{done.rejected:,} rows were rejected; to see why: python3 dev.py rejects {shlex.quote(str(rejects))}"
        )
        raise typer.Exit(1)


@cli.command()
def rejects(
    folder: Annotated[Path, typer.Argument(help="The folder that `backfill --rejects` named.")] = Path(
        ".onefold/rejects"
    ),
    rows: Annotated[int, typer.Option(min=0, help="How many rows of each reason to show.")] = 3,
    memory: Memory = "1g",
) -> None:
    """Show which rows the last backfill rejected, by reason."""
    if not (folder / "_delta_log").is_dir():
        raise filling.NoRejects(
            f"{folder} has no rejected rows; fix: name the folder that `--rejects` named, or backfill"
        )
    with _spark("rejects", None, memory) as spark:
        found = filling.rejects_in(spark, str(folder.resolve()), rows)
    for each in found:
        others = f", and {each.others:,} others of their aggregates" if each.others else ""
        typer.echo(f"{each.rows:,} rows{others}: {each.reason}")
        for row in each.examples:
            typer.echo(f"  {row}")
    typer.echo(f"{sum(each.rows + each.others for each in found):,} rows rejected")


@cli.command()
def insights(
    out: Annotated[Path, typer.Option(help="Folder of the pictures.")] = Path(".onefold/insights"),
    stream: Annotated[
        bool, typer.Option("--stream", help="Only what is new since the last time; no pictures.")
    ] = False,
    batch: Annotated[
        int, typer.Option(min=1, help="With --stream: how many records at a time, for which memory must do.")
    ] = 1_000_000,
    bootstrap: Bootstrap = None,
    archive: ArchiveRoot = None,
    master: Master = None,
    memory: Memory = "1g",
) -> None:
    """Revenue, retention, segments and baskets of accounts' holders: to a topic, the first two as pictures, too."""
    from pipelines import pictures  # here: no other verb needs to wait for matplotlib

    if stream and archive:
        raise typer.BadParameter("--stream does not read an archive")
    table, orders = table_of("accounts", "accounts"), [table_of("orders", "orders")] if "orders" in services() else []
    brokers = _brokers(bootstrap, [each.events.name for each in (table, *orders)])
    provision([results.TOPOLOGY], load_settings().model_copy(update={"bootstrap": brokers.bootstrap}))
    checkpoint = (out / "checkpoint").resolve()
    if stream and not any(checkpoint.glob("offsets/*")):
        _refuse_cut(brokers, table.events.name)
    with _spark("insights", master, memory) as spark:
        if stream:
            records = sources.stream(spark, brokers.bootstrap, table.events.name, batch)
            days = revenue_by_day(due(charges(event_columns(records, table))))
            seen = results.follow(days, brokers.bootstrap, str(checkpoint), "revenue", "day")
            _show_unread(seen[UNREAD], table.topology.service)
            _show_ahead(seen[AHEAD], "this stream never counts them, a run without --stream does once they are due")
            if late := seen[results.LATE]:
                why = f"they came over {LATENESS} later than others; a run without --stream counts them"
                typer.echo(f"{late:,} or more charges left out: {why}")
            typer.echo(f"written to {results.RESULTS.name}; the next run goes on from {checkpoint}")
            return
        all_charges = charges(_events(spark, brokers, table, archive)).cache()
        charged = due(all_charges).cache()
        days, months = revenue_by_day(charged).cache(), retention(charged).cache()
        results.write(days, brokers.bootstrap, "revenue", "day")
        results.write(months, brokers.bootstrap, "retention", "cohort", "months")
        results.write(by_segment(segments(charged)), brokers.bootstrap, "segment", "segment")
        for each in orders:
            ordered = _events(spark, brokers, each, archive).cache()
            _show_unread(ordered.where("type IS NULL").count(), each.topology.service)
            bought = lines(ordered).cache()
            results.write(revenue_by_sku_and_cohort(bought), brokers.bootstrap, "sku", "sku", "cohort")
            results.write(baskets(bought), brokers.bootstrap, "basket", "rank")
        unread = all_charges.where("at IS NULL").count()
        _show_unread(unread, table.topology.service)
        _show_ahead(all_charges.count() - charged.count() - unread, "they are counted once they are due")
        pictures.draw_revenue(days.collect(), out)
        pictures.draw_retention(months.collect(), out)
    typer.echo(f"written to {results.RESULTS.name}; pictures in {out}")


def _verdicts(
    spark: SparkSession,
    brokers: Brokers,
    chosen: Iterable[AnyTable],
    archive: str | None,
    options: Callable[[AnyTable], dict[str, Any]],
) -> Iterator[consistency.Verdict]:
    """Those of folded tables first, by one job, or by one each if it has to sort an archive."""
    folded = [each for each in chosen if isinstance(each, FoldedTable)]
    if archive:
        for each in folded:
            kept = _archive(spark, archive, each)
            yield consistency.check(spark, brokers, each, archive=kept, **options(each))
    elif folded:
        compared = [consistency.Comparison(spark, brokers, each, **options(each)) for each in folded]
        yield from consistency.verdicts(compared)
    for join in chosen:
        if isinstance(join, JoinedTable):
            yield joined.check(spark, brokers, join, partial(_archive, spark, archive), **options(join))


def _served(url: str | None, path: str | None, tables: list[str]) -> Collection[str]:
    """Those to ask for at `url`. Says which ones it does not serve."""
    if url is None or path is not None:
        return tables
    found = answers.served(url, tables)
    if others := [each for each in tables if each not in found]:
        typer.echo(f"not served over HTTP, so compared without: {', '.join(others)}")
    return found


def _show_trial(trial: filling.Trial, what: str) -> None:
    """Raises Exit if rows would be rejected."""
    done = trial.entered
    for event in trial.events:
        typer.echo(event)
    typer.echo(f"{done.written:,} {what}, {done.known:,} are there")
    if trial.unused:
        typer.echo(f"columns not used: {', '.join(trial.unused)}")
    _show_others(done)
    if done.rejected:
        typer.echo(f"{done.rejected:,} rows would be rejected")
        raise typer.Exit(1)


def _show_others(done: filling.Entered) -> None:
    """What became of the rows that have no event."""
    if done.left_out:
        typer.echo(f"{done.left_out:,} rows left out by `where`")
    for each in done.reasons:
        typer.echo(f"{each.rows:,} rows wrong: {each.reason}; such as {each.example}")


@contextmanager
def _spark(verb: str, master: str | None, memory: str) -> Iterator[SparkSession]:
    with spark_session(verb, master=master, memory=memory) as spark, reporting_progress(spark, verb):
        yield spark


def _show_unread(records: int, service: str) -> None:
    if records:
        names = f"`parity {service}` names their keys"
        typer.echo(f"{records:,} records left out: they are no events of {service}; {names}")


def _show_ahead(charges: int, meaning: str) -> None:
    if charges:
        typer.echo(f"{charges:,} charges left out: they are dated ahead; {meaning}")


def _refuse_cut(brokers: Brokers, topic: str) -> None:
    """Before a stream's first run: it would count days whose events are partly gone."""
    for partition, start in brokers.starts(topic).items():
        if start:
            missing = f"{topic}, partition {partition}: offsets 0 to {start - 1}"
            raise HistoryIncomplete(f"{missing} are not in the topic any more: count without --stream, from an archive")


def _events(spark: SparkSession, brokers: Brokers, table: FoldedTable, archive: str | None) -> DataFrame:
    ends = brokers.settled_ends(table.events.name)
    records = records_below(spark, brokers, table.events.name, ends, _archive(spark, archive, table))
    return event_columns(records.frame, table)


def _problems(kept: Archive, brokers: Brokers, numbered: bool) -> Iterator[str]:
    yield from kept.problems(brokers)
    if numbered:  # a copy, or a result, has the sequence of another aggregate's event
        yield from kept.broken_sequences()


def _show(done: Done, count: int, total: int, took_s: float) -> None:
    left_s = took_s / count * (total - count)
    typer.echo(
        f"[{count}/{total}] {done.table}: {done.events:,} events, {done.rows:,} rows; "
        f"{took_s:.0f} s, about {left_s:.0f} s left"
    )


def _brokers(bootstrap: str | None, topics: Iterable[str]) -> Brokers:
    """Asks for every topic first: Spark takes long to start, and longer to find that there is no broker."""
    brokers = Brokers(bootstrap or load_settings().bootstrap)
    for topic in topics:
        brokers.partitions(topic)
    return brokers


def _archive(spark: SparkSession, root: str | None, table: FoldedTable) -> Archive | None:
    return Archive(spark, root, table.topology.service, table.events.name) if root else None


def _tables(service: str | None) -> list[FoldedTable]:
    """Those of `service`, or of all. Raises UnknownTable."""
    if not (found := [table for name in ([service] if service else services()) for table in tables(name)]):
        raise UnknownTable(f"{service or 'services/'} has no tables")
    return found


def _chosen(service: str | None, table: str | None) -> list[AnyTable]:
    """The table, or all of `service`, or of all services, joined ones last. Raises UnknownTable."""
    if service and table:
        return [each for each in joins(service) if each.table.name == table] or [table_of(service, table)]
    folded = _tables(service)
    return [*folded, *(each for name in ([service] if service else services()) for each in joins(name))]


def main() -> None:
    """Runs the verb; an error that the operator can resolve is shown without a traceback.

    A bug is, and still does not exit with Python's 1, which says that problems were found.
    """
    try:
        cli(prog_name="python3 dev.py")
    except (OnefoldError, OSError) as error:
        _give_up(str(error), error)
    except (PySparkException, Py4JError) as error:
        _give_up(f"Spark failed: {cause(str(error))}", error)
    except Exception:
        traceback.print_exc()
        sys.exit(2)


def _give_up(told: str, error: Exception) -> NoReturn:
    """Shows also the notes that were added to the error."""
    typer.echo("\n".join([told, *getattr(error, "__notes__", [])]), err=True)
    sys.exit(2)


_RAISED = re.compile(r"^.*Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE)


def cause(report: str) -> str:
    """The one line of a Java stack trace that says why."""
    if "No space left on device" in report:
        return "the disk is full. Free some space, then run it again"
    if found := re.search(r"^(?:shared|pipelines)\.[\w.]+: (.+)$", report, re.MULTILINE):
        return found[1]  # by a Python worker
    if "Python worker exited unexpectedly" in report:
        return "a Python worker was killed, as when memory runs out. Fold fewer partitions at once: --master 'local[1]'"
    if raised := _RAISED.findall(report):
        return f"a Python worker raised {raised[-1]}"
    causes = [line.removeprefix("Caused by: ") for line in report.splitlines() if line.startswith("Caused by: ")]
    return (causes or report.strip().splitlines() or ["without a message"])[-1 if causes else 0]
