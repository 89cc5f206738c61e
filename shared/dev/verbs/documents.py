"""What this checkout declares, as documents: messages, schemas, settings."""

from __future__ import annotations

import json
from itertools import chain
from typing import Annotated

import typer

from shared.dev import here, schemas
from shared.dev.asyncapi import document_of
from shared.dev.formats import Format, shown_as
from shared.dev.stages import StageFailed
from shared.dev.variables import variables
from shared.runtime.checkout import CHECKOUT

cli = typer.Typer()


@cli.command()
def asyncapi(service: Annotated[str | None, typer.Argument(help="By default all, in one document.")] = None) -> None:
    """Show the AsyncAPI 3 document of what services read and write on topics, as JSON."""
    if service is not None:
        here.check_known(service)
    print(json.dumps(document_of(*([service] if service else here.services())), indent=2))


@cli.command("schemas")
def schemas_(
    service: Annotated[str | None, typer.Argument(help="By default all.")] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Write missing golden records, and them; without SERVICE, where a file is.")
    ] = False,
    breaking: Annotated[
        bool, typer.Option("--breaking", help="Accept what can't be read, too: nothing that matters was written yet.")
    ] = False,
    as_: Annotated[Format | None, typer.Option("--format", help="Show those of SERVICE, for others.")] = None,
) -> None:
    """Show what has changed in messages and states since it was accepted and since the last tag, and how to release it.

    Exits with 1 if they are not as accepted.
    """
    if service is not None:
        here.check_known(service)
    if breaking and not accept:
        raise StageFailed("--breaking is about --accept", "add --accept, or leave it out")
    if accept and as_ is not None:
        raise StageFailed("--format only shows", "leave out --accept, or --format")
    services = [service] if service else here.services()
    if as_ is not None:
        if service is None:
            raise StageFailed("--format shows one service", f"name one of: {', '.join(services)}")
        print(shown_as(as_, service, schemas.document_of(service)))
        return
    if accept:
        chosen = [each for each in services if service or schemas.file_of(CHECKOUT, each).exists()]
        rest = (schemas.golden(CHECKOUT, each) for each in services if each not in chosen)
        for line in chain(schemas.accept(CHECKOUT, chosen, breaking), *rest):
            print(line, flush=True)
    report = schemas.compared(CHECKOUT, services)
    print("\n".join(report.lines))
    if report.differ:
        raise typer.Exit(1)


@cli.command("settings")
def settings_() -> None:
    """Show every setting of a process with its default and what is allowed, as in docs/deployment.md."""
    print(variables())
