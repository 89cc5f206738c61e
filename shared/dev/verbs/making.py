"""What is made and renamed in this checkout, and what an upgrade brings."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from shared.dev import patterns, record, scaffold, whose
from shared.dev import up as local_stack
from shared.dev.rename import MEANS, rename
from shared.dev.stages import StageFailed
from shared.dev.upgrade import upgrade
from shared.runtime.checkout import CHECKOUT

cli = typer.Typer()


@cli.command("new-service")
def new_service(
    name: Annotated[str, typer.Argument(help="One lower-case word, a plural such as bookings.")],
    kind: Annotated[
        Literal["aggregate", "process", "projection", "claim", "effect"] | None,
        typer.Option(help="A small pattern to begin with."),
    ] = None,
    like: Annotated[str | None, typer.Option(help="Instead of a pattern, one of your services to copy.")] = None,
    on: Annotated[
        str | None, typer.Option(metavar="EVENT", help="What a process or a projection is told, such as order.placed.")
    ] = None,
    singular: Annotated[str | None, typer.Option(help="The singular of NAME, if not NAME without its s.")] = None,
) -> None:
    """Make a service with its tests from a pattern or a service; you then change its domain, api and topology."""
    if like is not None:
        if kind or on:
            raise StageFailed("--like copies a service as it is", "leave out --kind and --on, or --like")
        made = scaffold.new_service(CHECKOUT, name, like, singular)
        record.remember(CHECKOUT, "new-service", name=name, like=like, singular=singular)
    elif kind is not None:
        told = patterns.foreign(CHECKOUT, kind, on)
        made = scaffold.new_of_kind(CHECKOUT, name, kind, told, singular)
        of_another = {"on": told.event, "topic": told.topic, "partitions": told.partitions} if told else {}
        record.remember(CHECKOUT, "new-service", name=name, kind=kind, **of_another, singular=singular)
    else:
        fix = "--kind aggregate, process, projection, claim or effect; or --like SERVICE"
        raise StageFailed("what kind of service is it?", fix)
    print("\n".join(f"created  {folder}" for folder in made.folders))
    print(f"renamed  {', '.join(f'{old} to {new}' for old, new in made.words.items())}")
    print("".join(f"changed  {file}: {what}\n" for file, what in made.additions.items()), end="")
    print(f"changed  {record.FILE}: upgrades do it again")
    print(f"try      python3 dev.py {f'test {made.folders[-1]}' if len(made.folders) > 1 else 'check'}")


@cli.command("rename")
def rename_(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and -, such as ticket-office.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it means, and change nothing.")] = False,
) -> None:
    """Give the project another name, once: distribution, Compose, images, headers, settings and metrics."""
    if local_stack.running(local_stack.ROOT):
        raise StageFailed("`up` runs workers that have the old name", "end it first: python3 dev.py down")
    for old, new in rename(CHECKOUT, name, dry_run=dry_run).items():
        print(f"{'would be' if dry_run else 'renamed '} {old} to {new}")
    print("\n".join(f"note     {each}" for each in MEANS))
    if not dry_run:
        print("try      python3 dev.py check, then commit all of it")


@cli.command("upgrade")
def upgrade_(
    tag: Annotated[str | None, typer.Argument(help="Such as v1.1.0; by default the newest.")] = None,
    source: Annotated[str | None, typer.Option("--from", metavar="PATH|URL", help="The template; remembered.")] = None,
) -> None:
    """Merge a newer release of the template into what is committed here, on a branch.

    What new-service and others have done here is done to the releases first: fixes reach copied services, too.
    Exits with 1 if the branch has conflicts, with 2 if there is none.
    """
    try:
        done = upgrade(CHECKOUT, tag, source)
    except (StageFailed, OSError) as failure:
        print(failure, file=sys.stderr)
        raise typer.Exit(2) from None
    print("\n".join(done.lines()))
    raise typer.Exit(1 if done.conflicts else 0)


@cli.command("whose")
def whose_(
    source: Annotated[
        str | None, typer.Option("--from", metavar="PATH|URL", help="The template, to get the release from.")
    ] = None,
) -> None:
    """List the template's files that are edited here; onefold.toml says which paths are whose."""
    if source is not None:
        whose.fetch(CHECKOUT, source)
    print("".join(f"{path}\n" for path in whose.edited(CHECKOUT)), end="")
