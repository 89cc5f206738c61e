"""`versions`, `deploy`, `compare`, `switch`, `rollback`, `retire`: print what they will do, line by line, and do it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated

import typer

from shared.dev import here
from shared.dev.processes import user
from shared.dev.stages import check_known
from shared.operations.provision import load_services
from shared.operations.versions import Compared, Step, Versions
from shared.runtime.settings import load_settings
from shared.topology.declaration import Service

SHOWN = 20  # differing rows of each table

cli = typer.Typer()

_Reason = Annotated[str, typer.Option(help="Why; it is kept with what is done.")]


def _of(service: str) -> Versions:
    here.join_up()
    return Versions(_declared(service), load_settings())


@cli.command("versions")
def versions_(
    service: Annotated[str | None, typer.Argument(help="By default all.")] = None,
) -> None:
    """Show the versions of services that stand side by side, how far each is behind, and which one answers."""
    here.join_up()
    for each in [_declared(service)] if service else load_services():
        for line in _told(Versions(each, load_settings())):
            print(line)


@cli.command()
def deploy(service: str, dry_run: here.DryRun = False, reason: _Reason = "") -> None:
    """Let the declared version of SERVICE begin beside the one before, at the first record; it answers nothing."""
    versions = _of(service)
    note = partial(versions.note, "deploy", versions.topology.version, user(), reason)
    _do(versions.deploy(), note, dry_run, f"start workers of {versions.topology.group}, from this checkout")


@cli.command()
def compare(service: str) -> None:
    """Compare the rows of two versions of SERVICE by key, at the same positions. Exits with 1 if some differ."""
    versions = _of(service)
    one, other = versions.pair()
    print(f"compared  versions {one} and {other}, at the same positions")
    tables = []
    for table in versions.compare(one, other):
        tables.append(table)
        print("\n".join(compared(table)), flush=True)
    if any(table.differ for table in tables):
        raise typer.Exit(1)


@cli.command()
def switch(service: str, dry_run: here.DryRun = False, reason: _Reason = "") -> None:
    """Let the declared version of SERVICE answer all requests, whichever worker gets them."""
    versions = _of(service)
    note = partial(versions.note, "switch", versions.topology.version, user(), reason)
    _do(versions.switch(user(), reason), note, dry_run, f"`rollback {service}` goes back")


@cli.command()
def rollback(service: str, dry_run: here.DryRun = False, reason: _Reason = "") -> None:
    """Let the version of SERVICE answer again that did before the last `switch`."""
    versions = _of(service)
    active = versions.routes().active
    back_to = active and (active.former or active.version)
    note = partial(versions.note, "rollback", back_to or versions.topology.version, user(), reason)
    _do(versions.rollback(user(), reason), note, dry_run, f"`switch {service}` goes on again")


@cli.command()
def retire(
    service: str,
    version: Annotated[int, typer.Argument(min=1, help="Which does not answer, and has no workers any more.")],
    dry_run: here.DryRun = False,
    reason: _Reason = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete what only VERSION of SERVICE has: group, changelogs with all rows, what was parked, stores here."""
    versions = _of(service)
    ask = None if yes else "there is no way back; go on?"
    left = f"stores of {versions.of(version).group} on other machines are left, as caches of nothing"
    note = partial(versions.note, "retire", version, user(), reason)
    _do(versions.retire(version), note, dry_run, left, ask)


def compared(table: Compared) -> Iterable[str]:
    """Lines: how many rows are equal, which fields differ how often, and the first rows that do."""
    moved = f"; {table.moved} more changed meanwhile" if table.moved else ""
    yield f"table     {table.table}: {table.equal} of {table.rows} rows are equal{moved}"
    for name, count in sorted(table.by_field.items(), key=lambda each: -each[1]):
        yield f"field     {name or 'the state'} differs in {count}"
    for each in table.differ[:SHOWN]:
        fields = ", ".join(f"{name} {json.dumps(a)} → {json.dumps(b)}" for name, (a, b) in each.fields.items())
        only = "only the first has it: " if each.other is None else ""
        only = "only the second has it: " if each.one is None else only
        yield f"row       {each.key.decode(errors='replace')} in partition {each.partition}: {only}{fields}"
    if len(table.differ) > SHOWN:
        yield f"          and {len(table.differ) - SHOWN} more"


def _told(versions: Versions) -> Iterable[str]:
    name, found = versions.topology.service, versions.standing()
    for each in found:
        lag = "has read nothing yet" if each.lag is None else f"{each.lag} records behind"
        workers = f"{len(each.members)} workers" if each.members else "no workers"
        yield f"{name}  version {each.version}  {each.group}: {workers}, {lag}{', answers' if each.active else ''}"
    for deed in versions.routes().deeds:
        why = f": {deed.reason}" if deed.reason else ""
        yield f"{name}  {deed.at:%Y-%m-%d %H:%M:%S}  {deed.verb} of version {deed.version} by {deed.by}{why}"
    if not found:
        yield f"{name}  nothing stands; this checkout declares version {versions.topology.version}"


def _do(steps: Iterable[Step], note: Callable[[], None], dry_run: bool, then: str, ask: str | None = None) -> None:
    """note: keeps who does this; the first step makes the topic for it, if there is none."""
    planned = list(steps)
    print("".join(f"step    {each.says}\n" for each in planned) or "nothing to do: it is done\n", end="")
    if dry_run:
        print("dry run: nothing was changed")
        return
    if planned and ask is not None:
        typer.confirm(ask, abort=True)
    for each in planned:
        each.do()
        if each is planned[0]:  # also of what is interrupted
            note()
    print(f"done: {then}")


def _declared(service: str) -> Service:
    services = {each.topology.service: each for each in load_services()}
    check_known(service, services)
    return services[service]
