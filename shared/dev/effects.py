"""`effect`: makes the calls outside that a service's effects are, and takes what a person has decided about one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from shared.dev import here
from shared.dev.stages import StageFailed
from shared.effects.runner import run
from shared.http.client import Client, path_of
from shared.runtime.declared import declared_by
from shared.runtime.settings import load_settings, operators_token

cli = typer.Typer(name="effect", no_args_is_help=True, help="Make the calls outside that can't be taken back.")

_Service = Annotated[str, typer.Argument(help="With an effects.py.")]
_Urls = Annotated[list[str] | None, typer.Option("--url", help="Of its workers; by default those of `up`.")]
_Ids = Annotated[list[str], typer.Argument(metavar="ID...")]


@cli.command("run")
def run_(
    service: _Service,
    url: _Urls = None,
    token_file: Annotated[
        Path | None, typer.Option(help="With a bearer token, read for each request; by default ONEFOLD_TOKEN.")
    ] = None,
) -> None:
    """Call for SERVICE's effects until Ctrl-C. Any number of these may run; each attempt is made by one."""
    effects = declared_by(service, "effects")
    token = operators_token() if token_file is None else partial(_token_in, token_file)
    run(effects, url or _known(service), token or None, load_settings())


@cli.command()
def repeat(service: _Service, ids: _Ids, url: _Urls = None) -> None:
    """Have effects called for again that were given up or lost."""
    _sent("repeat", service, ids, url or _known(service))


@cli.command()
def settle(service: _Service, ids: _Ids, url: _Urls = None) -> None:
    """Say that effects have happened that were given up or lost."""
    _sent("settle", service, ids, url or _known(service))


def _token_in(file: Path) -> str:
    """One that no service takes while the file is away, as when it is replaced: the runner tells, and asks again."""
    try:
        return file.read_text().strip()
    except OSError:
        return "none"


def _known(service: str) -> Sequence[str]:
    if not (urls := here.workers_of(here.join_up()).get(service, ())):
        raise StageFailed(f"no worker of {service} is known", "run `up`, or name its workers by --url")
    return urls


def _sent(verb: str, service: str, ids: Sequence[str], urls: Sequence[str]) -> None:
    path = declared_by(service, "effects").path
    with Client(urls, token=operators_token() or None) as client:
        for each in ids:
            client.send(f"{path_of(path, each)}/{verb}")
            print(f"{verb}  {each}")
