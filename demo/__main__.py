"""python3 dev.py demo [--ci] [--purchases N]"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from demo.run import run

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@cli.command()
def demo(
    ci: Annotated[bool, typer.Option("--ci", help="End with the verdict instead of staying until Ctrl-C.")] = False,
    purchases: Annotated[int | None, typer.Option(min=1, help="Only the first so many of 69,659.")] = None,
) -> None:
    """Order real purchases in a shop of five services, kill a worker midway, and compare its books with the file."""
    verdict = run(purchases, stay=not ci)
    if ci:
        print(verdict.line)
    sys.exit(0 if verdict.agrees else 1)


if __name__ == "__main__":
    cli(prog_name="python3 dev.py demo")
