"""`repartition`: prints what it will do, line by line, and then does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from shared.dev.stages import stage
from shared.engine.wiring import processors_of, wired
from shared.operations.repartition import Journal, Repartition
from shared.runtime.settings import Settings
from shared.topology.declaration import Service
from shared.topology.replay import refill_of


def repartition(
    services: Sequence[Service], settings: Settings, partitions: int, dry_run: bool, ahead: bool = False
) -> None:
    """Gives all topics of the services more partitions. ahead: only copies what there is. Raises RepartitionRefused,
    GroupIsLive …"""
    readers = [(each, wired(each.topology, processors_of(each))) for each in services]
    work = Repartition(readers, settings, partitions)
    live = {} if ahead else work.live()
    if live and not dry_run:
        work.refuse_members()
    journal = work.plan(ahead=ahead)
    for group, names in live.items():
        print(f"group   {group}: {', '.join(names)}; stop them first")
    print("\n".join(_lines(work, journal)))
    if dry_run:
        print("dry run: nothing was changed")
        return
    if ahead:
        with stage("", "repartition") as now:
            copied = work.copy_ahead(partial(now.advance, what="records"))
            now.done = f"{copied} topics are copied"
        print("done: stop the workers of all services, and do this again without --ahead")
        return
    with stage("", "repartition") as now:
        work.carry_out(journal, partial(now.advance, what="records"))
        now.done = f"{len(journal.replaced)} topics have {partitions} partitions"
    if other := [each.topology.service for each in services if each.topology.partitions != partitions]:
        print(f"declare partitions={partitions} in topology.py of {', '.join(other)}")
    print("done: start the workers of all services; views and histories fill as they read")


def _lines(work: Repartition, journal: Journal) -> Iterator[str]:
    if journal.staged:
        yield f"goes on {len(journal.staged)} topics are copied, {len(journal.replaced)} have their new partitions"
    for name, spans in journal.spans.items():
        offsets = sum(end - start for start, end in spans.values())
        left = "twice" if name not in journal.staged else f"{journal.left_of(name):,} of them are not yet"
        yield f"topic   {name}: {len(spans)} → {journal.partitions} partitions; {offsets:,} offsets are copied, {left}"
    for each in work.members:
        replay, service = refill_of(each.readers), each.topology.service
        for table in replay.tables:
            yield f"rows    {service}/{table.name} is computed again from {table.source.name}"
        for source, name in replay.passing:
            yield f"beside  {name} passes over what it has handled of {source.name}"
