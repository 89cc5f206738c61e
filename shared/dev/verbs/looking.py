"""How the system is, told once: `status`, `doctor` and `story`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from shared.dev import here
from shared.dev.doctor import diagnose
from shared.dev.status import shown, status
from shared.dev.story import drawn, story_of
from shared.runtime.settings import load_settings
from shared.runtime.traces import as_otlp
from shared.stories.traces import spans_of

cli = typer.Typer()


@cli.command("status")
def status_(url: here.WorkerUrls = None) -> None:
    """Show who owns what, how far behind, what is parked and what would be lost. Exits with 1 if a line has a `!`."""
    topologies, workers = here.seen_workers(url)
    report = status(topologies, workers, load_settings())
    print("\n".join(shown(report)))
    if any(line.wrong for lines in report.values() for line in lines):
        raise typer.Exit(1)


@cli.command("doctor")
def doctor_(
    url: here.WorkerUrls = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Say what is wrong, why it matters and what mends it; nothing if all is well.

    Exits with 5 if records wait or can be lost, 4 if harm is near, 3 if something is wasted, 1 if it can't look.
    """
    topologies, workers = here.seen_workers(url)
    diagnosis = diagnose(topologies, workers, load_settings())
    lines = [diagnosis.as_json()] if as_json else diagnosis.lines()
    print("".join(f"{line}\n" for line in lines), end="")
    raise typer.Exit(diagnosis.exit_code)


@cli.command("story")
def story_(
    id_: Annotated[
        str,
        typer.Argument(metavar="ID", help="A correlation id, a message's id, or a place, TOPIC/PARTITION/OFFSET."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
    otlp: Annotated[
        Path | None, typer.Option(help="Also write it as an OpenTelemetry trace, which collectors take at /v1/traces.")
    ] = None,
) -> None:
    """Show all that a message came from and led to: what caused what, when, where it lies and how long it waited.

    Exits with 1 if something of it is missing. An ID of long ago takes a search of all that is newer; a place does not.
    """
    here.join_up()
    story = story_of(id_, load_settings())
    if otlp is not None:
        otlp.write_text(json.dumps(as_otlp(spans_of(story))))
    print(story.model_dump_json(indent=2) if as_json else "\n".join(drawn(story, sys.stdout.isatty())))
    if not story.whole:
        raise typer.Exit(1)
