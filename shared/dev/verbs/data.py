"""What is written already: taken elsewhere, computed again, spread over more partitions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from shared.dev import here
from shared.dev import up as local_stack
from shared.dev.importing import fill, send_next
from shared.dev.repartition import repartition
from shared.dev.reprocess import reprocess
from shared.dev.stages import StageFailed, stage
from shared.operations.export import export, service_in
from shared.operations.provision import load_services
from shared.runtime.settings import load_settings

cli = typer.Typer()


@cli.command("export")
def export_(
    service: str, folder: Annotated[Path, typer.Argument(metavar="DIR", help="New; it may be copied anywhere.")]
) -> None:
    """Write the topics and positions of SERVICE into files, as they are now, to `import` them elsewhere."""
    here.check_known(service)
    here.join_up()
    declaration = here.declaration(service)
    with stage("", "export") as now:
        made = export(declaration, load_settings().bootstrap, folder, partial(now.advance, what="offsets"))
        parts = [part for some in made.parts.values() for part in some.values()]
        now.done = f"{sum(part.records for part in parts):,} records of {len(parts)} partitions"
    print(f"{folder} has {service}; personal text is sealed, as in the topics")


@cli.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `export` has written.")],
    until: Annotated[
        str | None, typer.Option(metavar="ID", help="Only what led to this message: its id, or TOPIC/PARTITION@OFFSET.")
    ] = None,
    next_: Annotated[bool, typer.Option("--next", help="Beside `up`: send the message that --until named.")] = False,
) -> None:
    """Fill the empty broker of `up`, which does not run, with an export: the same records at the same offsets."""
    service = service_in(folder)
    here.check_known(service)
    declaration = here.declaration(service)
    if next_:
        bootstrap = local_stack.found(local_stack.ROOT).settings["ONEFOLD_BOOTSTRAP"]
        place, offset = send_next(declaration.topology, folder, local_stack.ROOT, bootstrap)
        print(f"sent {place}@{offset}")
        return
    if local_stack.running(local_stack.ROOT):
        raise StageFailed("`up` runs, and its broker's files are to be written", "python3 dev.py down")
    cut = fill(declaration, here.topologies(), folder, local_stack.ROOT, until)
    if cut is not None:
        print(f"next     {cut.at[0]}@{cut.at[1]}: `python3 dev.py import {quote(str(folder))} --next` sends it")
    print(f"try      python3 dev.py up {service}")


@cli.command("reprocess")
def reprocess_(
    view: Annotated[str, typer.Argument(help="SERVICE/TABLE; SERVICE alone for all its views, if it has only views.")],
    dry_run: here.DryRun = False,
    copies: Annotated[bool, typer.Option("--copies", help="Make the copies that feed the table again, too.")] = False,
) -> None:
    """Compute a view again from its first event, while no worker of its service runs. Nothing is sent again."""
    here.join_up()
    reprocess(view, load_settings(), dry_run, copies)


@cli.command("repartition")
def repartition_(
    partitions: Annotated[int, typer.Option(min=1, help="Of each topic of all services: more than there are.")],
    dry_run: here.DryRun = False,
    ahead: Annotated[
        bool, typer.Option("--ahead", help="Before workers are stopped: copy what is there, so that less is left.")
    ] = False,
) -> None:
    """Give all topics more partitions, while no worker of any service runs: all records are copied, twice."""
    here.join_up()
    repartition(load_services(), load_settings(), partitions, dry_run, ahead)
