"""`reprocess`: prints what it will do, line by line, and then does it."""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shared.dev.stages import StageFailed
from shared.operations.provision import load_topologies
from shared.operations.reprocess import Plan, Reprocessing
from shared.runtime.checkout import found_services
from shared.runtime.settings import Settings
from shared.topology.replay import replay_of


def reprocess(view: str, settings: Settings, dry_run: bool, copies: bool = False) -> None:
    """Computes SERVICE/TABLE, or all views of SERVICE, from their start. Raises NotReplayable, GroupIsLive …

    copies: that feed the table are made again, too.
    """
    service, slash, table = view.partition("/")
    app = _app(service)
    replay = replay_of(app.topology, app.processors, table if slash else None, copies=copies)
    brokers = Reprocessing(settings.bootstrap)
    if not dry_run:
        brokers.refuse_members(app.topology.group)
    plan = brokers.plan(app.topology, replay)
    folders = sorted(_stores(settings.data_dir, app.topology.group, (table.name for table in replay.tables)))
    beside = (f"beside  {name} passes over what it has handled" for _, name in replay.passing)
    print("\n".join([*_lines(plan, folders), *beside]))
    if dry_run:
        print("dry run: nothing was changed")
        return
    brokers.carry_out(plan)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"done: start the workers of {service}, and the view fills as they read")


def _app(service: str) -> Any:
    """The Faust app of the service's workers, which knows its processors; it does not run here."""
    if service not in found_services():
        raise StageFailed(f"no service is called {service}", "name one that `up` starts, as SERVICE/TABLE")
    return importlib.import_module(f"services.{service}.app").app


def _lines(plan: Plan, folders: Iterable[Path]) -> Iterator[str]:
    members = f"{', '.join(plan.members)}; stop them first" if plan.members else "no members"
    yield f"group   {plan.group}: {members}"
    for move in plan.moves:
        before = "not read" if move.before is None else move.before
        yield f"offset  {move.place}: {before} → {move.after}"
    for part in plan.emptied:
        yield f"rows    {part.changelog}: offsets {part.start} to {part.end - 1} are removed"
    for folder in folders:
        shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        yield f"folder  {shown} is removed"


def _stores(data_dir: Path, group: str, tables: Iterable[str]) -> Iterator[Path]:
    """The tables' local stores. A store elsewhere is wiped by its own worker, which finds it out of date."""
    others = [f"{each.group}-" for each in load_topologies() if each.group.startswith(f"{group}-")]
    names = re.compile(rf"({'|'.join(map(re.escape, tables))})-\d+")
    for folder in data_dir.glob(f"{group}-*/*"):
        if names.fullmatch(folder.name) and not folder.parent.name.startswith(tuple(others)):
            yield folder
