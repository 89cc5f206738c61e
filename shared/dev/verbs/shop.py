"""What demonstrates Onefold, and what leaves it out: gone itself after `remove-demo`, and in a new project."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from shared.dev import new_project, record, remove_demo
from shared.dev import up as local_stack
from shared.dev.stages import StageFailed
from shared.dev.verbs.becoming import ANY_ARGUMENTS, become
from shared.runtime.checkout import CHECKOUT

cli = typer.Typer()


@cli.command(context_settings=ANY_ARGUMENTS, add_help_option=False)
def demo(context: typer.Context) -> None:
    """Order real purchases in a shop of five services, through a crash; `demo --help` shows the options."""
    become("demo", context.args)


@cli.command("failover-drill", context_settings=ANY_ARGUMENTS, add_help_option=False)
def failover_drill(context: typer.Context) -> None:
    """Lose a cluster under the traffic of real purchases, and go on at a second one; `--purchases` says how many."""
    become("demo.drill", context.args)


@cli.command("new-project")
def new_project_(
    folder: Annotated[Path, typer.Argument(help="New.")],
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and -, such as ticket-office.")],
) -> None:
    """Make a project of your own of what is committed here: the engine with its tests, and no example."""
    release = new_project.new_project(CHECKOUT, folder.resolve(), name)
    print(f"created  {folder}, from {release}; its first commit is yours")
    print(f"next     cd {quote(str(folder))}")
    print("         python3 dev.py new-service NAME --kind aggregate")


@cli.command("remove-demo")
def remove_demo_(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Accounts, too, with each test that needs it.")] = False,
) -> None:
    """Remove the shop and what demonstrates it; accounts stays, as you can copy it."""
    if local_stack.running(local_stack.ROOT):
        raise StageFailed("`up` runs services that would be removed", "end it first: python3 dev.py down")
    plan = remove_demo.plan(CHECKOUT, new_project.EXAMPLE if all_ else ())
    print("\n".join(f"remove  {path.relative_to(CHECKOUT)}" for path in plan.gone))
    print("\n".join(f"edit    {path.relative_to(CHECKOUT)}" for path in plan.edited))
    print("".join(f"note    services/{service} names topics that are removed\n" for service in plan.dependent), end="")
    if not yes:
        typer.confirm("go on?", abort=True)
    new_project.remove_examples(CHECKOUT, plan) if all_ else remove_demo.carry_out(plan)
    record.remember(CHECKOUT, "remove-demo", all="accounts" if all_ else None)
    print("".join(f"look at {name}: it is not as it was\n" for name in plan.missed), end="")
    services = [*remove_demo.SERVICES, *(["accounts"] if all_ else [])]
    topics = f"({'|'.join(services)})[.-].*"
    print(f"note    their topics stay on brokers: python3 dev.py kafka topics --delete --topic '{topics}'")
    print("note    those of `up` are in .onefold/up, with all others: rm -r .onefold/up")
    print("try     python3 dev.py test")
