"""`effect`: makes the calls outside that a service's effects are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from shared.dev.stages import StageFailed
from shared.effects.runner import run
from shared.runtime.declared import declared_by
from shared.runtime.settings import load_settings, operators_token

Workers = Callable[[str], Sequence[str]]
"""The URLs of a service's workers in this checkout's `up`."""


def effect_cli(workers: Workers) -> typer.Typer:
    cli = typer.Typer(no_args_is_help=True, help="Make the calls outside that can't be taken back.")

    @cli.callback()
    def effect() -> None:
        """Has a verb below it, as `sink` has."""

    @cli.command("run")
    def run_(
        service: Annotated[str, typer.Argument(help="With an effects.py.")],
        url: Annotated[list[str] | None, typer.Option(help="Of its workers; by default those of `up`.")] = None,
        token_file: Annotated[
            Path | None, typer.Option(help="With a bearer token, read for each request; by default ONEFOLD_TOKEN.")
        ] = None,
    ) -> None:
        """Call for SERVICE's effects until Ctrl-C. Any number of these may run; each attempt is made by one."""
        effects = declared_by(service, "effects")
        if not (urls := url or workers(service)):
            raise StageFailed(f"no worker of {service} is known", "run `up`, or name its workers by --url")
        token = operators_token() if token_file is None else lambda: token_file.read_text().strip()
        run(effects, urls, token or None, load_settings())

    return cli
