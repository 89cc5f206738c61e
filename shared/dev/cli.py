"""The project's own command line; `python3 dev.py VERB` hands over to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import chain
from traceback import extract_tb
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from shared.dev.environment import explain_os_error
from shared.dev.stages import StageFailed
from shared.domain.errors import OnefoldError
from shared.runtime.checkout import CHECKOUT

VERBS = {
    "shared.dev.verbs.running": ("up", "down", "stop", "start", "worker"),
    "shared.dev.verbs.looking": ("status", "doctor", "story"),
    "shared.dev.verbs.watching": ("console", "watch"),
    "shared.dev.dead_letters": ("dead-letters",),
    "shared.dev.verbs.making": ("new-service", "rename", "upgrade", "whose"),
    "shared.dev.verbs.documents": ("asyncapi", "schemas", "settings"),
    "shared.dev.verbs.data": ("export", "import", "reprocess", "repartition"),
    "shared.dev.verbs.persons": ("forget",),
    "shared.dev.versions": ("versions", "deploy", "compare", "switch", "rollback", "retire"),
    "shared.dev.sinks": ("sink",),
    "shared.dev.effects": ("effect",),
    "shared.dev.verbs.brokers": ("provision", "grant", "mirror", "kafka", "topics"),
    "shared.dev.verbs.deploying": ("secrets", "kubernetes", "token"),
    "shared.dev.verbs.becoming": ("bench", "parity", "archive", "rebuild", "backfill", "rejects", "insights"),
    "shared.dev.verbs.shop": ("demo", "failover-drill", "new-project", "remove-demo"),
}
"""By the module whose `cli` has them, or is one itself. It is imported for them alone: all modules take a second."""


class Verb(TyperCommand):
    """One of VERBS, before anybody asks for it."""

    def imported(self) -> Any:
        (module,) = (module for module, verbs in VERBS.items() if self.name in verbs)
        group = get_group(import_module(module).cli)
        return group.commands.get(str(self.name), group)


class Verbs(TyperGroup):
    """Those of VERBS, and those of services/commands.py."""

    def __init__(self, *, commands: Mapping[str, Any], **attrs: Any) -> None:
        verbs = {verb: Verb(verb) for verb in chain.from_iterable(VERBS.values())}
        super().__init__(commands=verbs | {**commands}, **attrs)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        return found.imported() if isinstance(found, Verb) else found


cli = typer.Typer(
    cls=Verbs, callback=lambda: None, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
)


def _workers() -> Mapping[str, Sequence[str]]:
    from shared.dev import here  # with what most verbs need, but not all

    return here.workers_of(here.join_up())


def _add_own() -> None:
    """Of services/commands.py, if it can be imported: one that is broken costs a team no other verb."""
    file = CHECKOUT / "services" / "commands.py"
    if not file.exists():
        return
    try:
        own = import_module("services.commands").cli
        get_group(own)
    except Exception as error:  # whatever its modules raise
        lines = [f"{each.filename}:{each.lineno}" for each in extract_tb(error.__traceback__)]
        where = next((line for line in reversed(lines) if line.startswith(f"{file.parent}/")), str(file))
        broken = f"{where} has an error, so verbs of your own are left out: {type(error).__name__}: {error}"
        print(StageFailed(broken, "correct it"), file=sys.stderr)
    else:
        cli.add_typer(own)


def main() -> None:
    """Runs the verb; an error that the operator can resolve is shown without a traceback."""
    try:
        _add_own()
        cli(prog_name="python3 dev.py", obj=_workers)
    except (OnefoldError, StageFailed) as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(str(explain_os_error(error)))


if __name__ == "__main__":
    main()
