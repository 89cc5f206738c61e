"""What is read again when views are computed from their start, and which views can't be without repeating an effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.domain.errors import OnefoldError
from shared.topology.topics import Table, Topic, Topology


class NotReplayable(OnefoldError):
    """Reading the view's source again would also decide, send or count something again.

    Operator action: do what the message says; nothing was changed.
    """


class Replayable(Protocol):
    """The part of a processor that says what a second reading of its source does."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> Topic: ...
    @property
    def table(self) -> Table | None: ...
    @property
    def repeatable(self) -> bool:
        """Whether a record leads to nothing but rows and copies."""

    @property
    def copies(self) -> Sequence[Topic]:
        """The service's own topics that it copies the records to."""


@dataclass(frozen=True, slots=True)
class Replay:
    """tables: to be emptied. sources: the topics that feed the views among them.

    again: topics that are read from their first record, once the tables are empty. skipped: topics of copies, read from
    their present end, because the copies are written again behind it. passing: processors
    that read one of these, too, but go on where they stand in it, and pass over what lies before. makers: those that
    make the copies again; they pass over as much, until the existing copies are skipped.
    """

    tables: tuple[Table, ...]
    sources: tuple[Topic, ...]
    again: tuple[Topic, ...]
    skipped: tuple[Topic, ...] = ()
    passing: tuple[tuple[Topic, str], ...] = ()
    makers: tuple[tuple[Topic, str], ...] = ()


def replay_of(topology: Topology, readers: Iterable[Replayable], table: str | None, *, copies: bool = False) -> Replay:
    """The replay of one table from its own source, with all that it is joined with; for None, of all tables from all
    sources except topics of copies.

    copies: of one table from what is copied for it, with all tables that whoever copies there feeds, and so on.

    Raises NotReplayable.
    """
    readers = tuple(readers)
    if table is None:
        if copies:
            raise NotReplayable(
                f"`--copies` needs a table: name one, as {topology.service}/TABLE, or leave it out: of a service, "
                f"all copies are made again"
            )
        return _of_all(topology, readers)
    found = _found(topology, readers, table)
    return _of_copies(topology, readers, found) if copies else _of_one(topology, readers, found)


def refill_of(readers: Iterable[Replayable]) -> Replay:
    """The replay of all views and the history index, whose rows are gone: what copies or acts on their sources goes on
    where it stands.
    """
    readers = tuple(readers)
    folding = [reader for reader in readers if reader.table is not None and reader.repeatable]
    sources = tuple(dict.fromkeys(reader.source for reader in folding))
    tables = tuple(reader.table for reader in folding if reader.table is not None)
    return Replay(tables, sources, sources, passing=_passing(readers, sources))


def _found(topology: Topology, readers: Sequence[Replayable], name: str) -> Table:
    views = _views(topology, readers)
    found = {table.name: table for table in topology.tables}.get(name)
    if found is None:
        raise NotReplayable(f"{topology.service} has no table {name}; {_named(views)}")
    if name not in views:
        raise NotReplayable(
            f"{topology.service}/{name} is an aggregate's table: its source {found.source.name} holds commands, and "
            f"deciding them again would write and send everything twice. Raise `version` in its topology.py: "
            f"`rebuild {topology.service}` then folds its next version from the events"
        )
    return found


def _of_one(topology: Topology, readers: Sequence[Replayable], table: Table) -> Replay:
    tables = topology.joined_with(table)
    sources = tuple(dict.fromkeys(each.source for each in tables))
    return Replay(tables, sources, sources, passing=_passing(readers, sources))


def _of_copies(topology: Topology, readers: Sequence[Replayable], table: Table) -> Replay:
    makers, targets = _makers(readers, table.source)
    if not makers or _passing(readers, targets):
        what = f"{topology.service} copies nothing to" if not makers else "what a Rekey or a policy reads again is in"
        raise NotReplayable(f"{what} {_names(targets or [table.source])}; leave out `--copies`")
    tables = topology.joined_with(*(each for each in topology.tables if each.source in targets))
    sources = dict.fromkeys([*targets, *(each.source for each in tables)])
    beside = [source for source in sources if source not in targets]
    again = tuple(dict.fromkeys([*(maker.source for maker in makers), *beside]))
    others = [reader for reader in readers if reader not in makers]
    passing, copying = _passing(others, again), _passing(makers, again)
    return Replay(tables, tuple(sources), again, skipped=targets, passing=passing, makers=copying)


def _makers(readers: Sequence[Replayable], target: Topic) -> tuple[list[Replayable], tuple[Topic, ...]]:
    """Those that copy to `target`, or to what one of them copies to, too; and all that they copy to."""
    makers: list[Replayable] = []
    targets = {target}
    while more := [each for each in readers if each not in makers and not targets.isdisjoint(each.copies)]:
        makers += more
        targets.update(*(each.copies for each in more))
    return makers, tuple(dict.fromkeys(copied for each in makers for copied in each.copies))


def _passing(readers: Iterable[Replayable], sources: Iterable[Topic]) -> tuple[tuple[Topic, str], ...]:
    """Those that send or copy what they read there."""
    sources = tuple(sources)
    acting = (reader for reader in readers if reader.copies or not reader.repeatable)
    return tuple((reader.source, reader.name) for reader in acting if reader.source in sources)


def _of_all(topology: Topology, readers: Sequence[Replayable]) -> Replay:
    if not all(reader.repeatable for reader in readers):
        views = _views(topology, readers)
        raise NotReplayable(f"{topology.service} also decides or sends, which must not be repeated; {_named(views)}")
    copies = dict.fromkeys(topic for reader in readers for topic in reader.copies)
    read = dict.fromkeys(reader.source for reader in readers)
    sources = dict.fromkeys(table.source for table in topology.tables)
    again = tuple(topic for topic in read if topic not in copies)
    # parked records are read again, too, parked copies as new records
    return Replay(topology.all_tables(), tuple(sources), again, tuple(copies), makers=_passing(readers, read))


def _views(topology: Topology, readers: Iterable[Replayable]) -> dict[str, str]:
    folded = [reader.table for reader in readers if reader.table is not None and reader.repeatable]
    joined = [table for table in topology.tables if table.joins]
    return {table.name: f"{topology.service}/{table.name}" for table in [*folded, *joined]}


def _named(views: dict[str, str]) -> str:
    return f"name one of its views: {', '.join(views.values())}" if views else "it has no view"


def _names(topics: Iterable[Topic]) -> str:
    return ", ".join(topic.name for topic in topics)
