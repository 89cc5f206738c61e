"""Topics and tables as data: one declaration, created and checked by the provisioner, read by the engine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

KEPT_FOR_EVER = -1
DELETIONS_KEPT_S = 86_400  # tombstones in a compacted topic: Kafka's delete.retention.ms, declared where rows end
PARTITIONS_MAX = 500  # a request to a neighbouring worker names those that it is asked for
PARKED = "parked"
HISTORY_INDEX = "chapters"  # as it is called in topics and dead letters
HOUR_MS = 3_600_000
IDEMPOTENCY_HOURS_MIN = 24
ENGINE_TABLES = (PARKED, HISTORY_INDEX)  # names that no service may take

_PARTS = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+\.v[0-9]+")
_LEGAL_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,248}")


Cleanup = Literal["delete", "compact", "compact,delete"]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic whose records have keys: aggregate ids in UTF-8. It may be the service's own or a neighbour's.

    name          `<service>.<kind>.v<major>`. Where brokers check access, other services may write to topics of the
                  kind `commands`, and read those of every other kind. A second cluster mirrors only `commands`,
                  `events`, `timers`, `public` and `dead`: what is in topics of other kinds is computed again.
    cleanup       `delete` removes records by time alone. `compact` keeps only the last record of each key, which is
                  enough for views that show no more than that, if `parity` need not agree: it counts records.
    retention_ms  how long a record stays, in milliseconds; -1, the default, is for ever. What is removed cannot be
                  computed from again, unless `archive` has run before. A worker that has not read it yet stops.

    Raises ValueError for a name that is not legal.
    """

    name: str
    cleanup: Cleanup = "delete"
    retention_ms: int = KEPT_FOR_EVER

    def __post_init__(self) -> None:
        check_name(self.name)

    @property
    def kind(self) -> str:
        """The kind of its records: commands, events, timers, public, dead, … Raises ValueError."""
        _check_parts(self.name)
        return self.name.split(".")[1]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows by key, fed by exactly one topic, so that they can be computed from it again; or made of the rows that other
    tables have of the same key.

    A row must fit in a record (1 MiB by default): what a state or a view keeps needs a bound, and so does the number of
    keys, such as windows for each sensor, unless rows end.

    name         a plain noun, in lower case; the changelog is named after it.
    source       the topic that feeds it: of commands, for the rows of an aggregate; of anything else, for a view.
    indexes      fields of the state that lists filter and order by: bools, ints, floats or text, as they are in JSON,
                 where a date is text. A Decimal or a timedelta would sort as text, too: index whole cents or seconds
                 instead. A query's field must have the type of the state's. Null stands for a field that a phase lacks,
                 a list and an object; a row that is older than a field counts with the field's default. Several fields,
                 as in `("customer_id", "placed_at")`, are one more index, for lists that are filtered by one value of
                 each, or ordered by the last and filtered by one value of the others. A worker whose indexes have
                 changed restores the table once.
    keyed_by_id  whether its keys are aggregate ids, which murmur2 assigns to partitions.
    kept_ms      how long a row counts after the record that it tells of, in milliseconds; -1, the default, is for ever.
                 Only the engine's own tables lose rows by time, and not before twice as long.
    ends         whether a row ends, and is deleted, when `evolve` or `project` gives the initial state again. Its key
                 can begin again: an aggregate with the next sequence, a view with the first. A table of aggregates that
                 ends needs the topology's `history`. A view that has rows when this changes is computed again.
    expires      the field of a view's state, an Instant or null, that says when its row ends: by the time of the events
                 in the row's partition, never by a clock. Such a table `ends`, and has an index of the field.
    joins        the tables of which its rows are made; declare such a table by `Table.joined`.
    refers       the reference tables that its rows are made of, too, each with the field that names a row of it.
    everywhere   whether each partition has all of its rows; declare such a table by `Table.reference`.

    Raises ValueError for a name or an index that is not legal, and for an aggregate's table that expires.
    """

    name: str
    source: Topic
    indexes: tuple[str | tuple[str, ...], ...] = ()
    keyed_by_id: bool = True
    kept_ms: int = KEPT_FOR_EVER
    ends: bool = False
    joins: tuple[Table, ...] = ()
    expires: str | None = None
    refers: tuple[tuple[str, Table], ...] = ()
    everywhere: bool = False

    @classmethod
    def reference(
        cls, name: str, source: Topic, *, indexes: tuple[str | tuple[str, ...], ...] = (), ends: bool = False
    ) -> Table:
        """A small view of which each partition has all rows, for others to join by any field. A list of it, and a
        stream of its changes, is that of one partition.

        source: a topic to which a Rekey copies each event `everywhere`.
        """
        return cls(name, source, indexes, keyed_by_id=False, ends=ends, everywhere=True)

    @classmethod
    def joined(
        cls,
        name: str,
        *joins: Table,
        refers: Mapping[str, Table] = MappingProxyType({}),
        indexes: tuple[str | tuple[str, ...], ...] = (),
    ) -> Table:
        """A table with a row for each key of any of these views of the same service, made of theirs by a `Join`. Where
        rows of theirs end, it ends with the last of them.

        refers: reference tables, by the field of the first view that holds the key of a row there, a text or null. That
        view has an index of the field. Rows show each change of what they refer to.

        Raises ValueError for fewer than two, one that is named twice, an aggregate's, a joined one, or views of which
        only some are keyed by aggregate ids.
        """
        if len({*joins}) < len(joins) or len(joins) + len(refers) < 2 or not joins:
            raise ValueError(f"{name} joins {_names(joins)}; fix: name two views or more, each once")
        for field, each in refers.items():
            if not each.everywhere:
                raise ValueError(
                    f"{name} refers to {each.name}, of which no partition has all rows; fix: declare it with "
                    f"Table.reference, or if it has the same keys, join it"
                )
            if field not in joins[0].indexes:
                raise ValueError(
                    f"{name} refers to {each.name} by {field!r}, and nothing finds the rows of {joins[0].name} that "
                    f"show a row of it; fix: name {field!r} in the indexes of {joins[0].name}"
                )
        for each in joins:
            if each.everywhere:
                raise ValueError(f"{name} joins {each.name}, a reference table; fix: name it in `refers`")
            if each.is_of_commands or each.joins:
                what = "an aggregate's table" if each.is_of_commands else "joined itself"
                fix = "join a view of its events" if each.is_of_commands else f"join {_names(each.joins)} instead"
                raise ValueError(f"{name} joins {each.name}, which is {what}; fix: {fix}")
        if len({each.keyed_by_id for each in joins}) > 1:
            raise ValueError(
                f"{name} joins {_names(joins)}, whose keys are not spread alike; fix: give them the same keyed_by_id"
            )
        ends, by_field = any(each.ends for each in joins), tuple(refers.items())
        return cls(name, joins[0].source, indexes, joins[0].keyed_by_id, ends=ends, joins=joins, refers=by_field)

    @property
    def folded(self) -> tuple[Table, ...]:
        """The tables that its rows tell of, each fed by its own source: those that it joins or refers to, or itself."""
        return (*self.joins, *dict.fromkeys(table for _, table in self.refers)) if self.joins else (self,)

    @property
    def is_of_commands(self) -> bool:
        """Whether its rows are aggregates."""
        return ".commands." in self.source.name

    @property
    def stored_ms(self) -> int:
        """How long its rows are stored at least. Clocks may differ, and a restore takes time."""
        return self.kept_ms if self.kept_ms == KEPT_FOR_EVER else 2 * self.kept_ms

    def __post_init__(self) -> None:
        check_name(self.name)
        for index in self.indexes:
            if not isinstance(index, str) and not 1 < len(index) == len({*index}):
                fix = "name two fields or more, each once, or one as text"
                raise ValueError(f"{self.name}: {index!r} is no index; fix: {fix}")
        if self.expires is not None:
            if self.is_of_commands:
                fix = "send the command that ends it by a Timer, so that its end is an event, too"
                raise ValueError(f"{self.name}: an aggregate's row can't expire; fix: {fix}")
            object.__setattr__(self, "ends", True)
            object.__setattr__(self, "indexes", tuple(dict.fromkeys((*self.indexes, self.expires))))


def outcomes_of(table: Table, hours: int = IDEMPOTENCY_HOURS_MIN) -> Table:
    """What became of the commands to the table's aggregates."""
    return Table(f"{table.name}-outcomes", source=table.source, keyed_by_id=False, kept_ms=hours * HOUR_MS)


@dataclass(frozen=True)
class Topology:
    """What a service owns on the brokers: its topics, and its tables with their changelogs.

    service            its name, with which all of its topics begin.
    topics             its own topics, but those that every service has: dead letters, operators' requests, changelogs.
    tables             its tables, each fed by an own topic or a neighbour's.
    partitions         the number, 1 to 500, of the partitions of all its topics and of all that its workers handle, so
                       that one worker owns everything of a key. It grows by `repartition` alone, because keys move.
    version            counts from 1 how the tables are computed. A new version has its own changelogs and positions,
                       which `rebuild` fills from history; those of the old version stay as they are.
    history            the topic of the aggregate's own events, if its workers answer requests about its past, too, or
                       its rows end.
    idempotency_hours  how long, at least 24, a command that is sent again has its outcome again, and no second effect,
                       whatever comes between. It is the same for all workers, as the log decides it, and may be raised
                       at any time.

    Raises ValueError for a value out of range, a name that is not legal, one that is declared twice, or a table of
    aggregates that ends without a history.
    """

    service: str
    topics: tuple[Topic, ...]
    tables: tuple[Table, ...] = ()
    partitions: int = 8
    version: int = 1
    history: Topic | None = None
    idempotency_hours: int = IDEMPOTENCY_HOURS_MIN

    def __post_init__(self) -> None:
        check_name(self.service)
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise ValueError(f"{self.service}: {self.partitions} partitions; fix: 1 to {PARTITIONS_MAX}")
        if self.version < 1:
            raise ValueError(f"{self.service}: version {self.version}")
        if self.idempotency_hours < IDEMPOTENCY_HOURS_MIN:
            least = f"callers repeat for as long; fix: at least {IDEMPOTENCY_HOURS_MIN}"
            raise ValueError(f"{self.service}: idempotency_hours={self.idempotency_hours}: {least}")
        for topic in self.topics:
            _check_parts(topic.name)
        for table in self.tables:
            if missing := [each for each in table.folded if each not in self.tables]:
                raise ValueError(
                    f"{self.service}: {table.name} joins {_names(missing)}; fix: add it to `tables` in topology.py, too"
                )
        names = Counter(topic.name for topic in self.all_topics())
        if repeated := [name for name, times in names.items() if times > 1]:
            raise ValueError(f"{self.service}: declared more than once: {repeated}")
        if self.history is None and (
            ending := [each.name for each in self.tables if each.ends and each.is_of_commands]
        ):
            raise ValueError(
                f"{self.service}: rows of {ending[0]} end, and nothing would know at which sequence their aggregates "
                f"go on; fix: give the Topology `history=`, the topic of their events"
            )

    @property
    def group(self) -> str:
        """The consumer group of the workers of this version, and Faust's app id."""
        return self.service if self.version == 1 else f"{self.service}-v{self.version}"

    @property
    def next_version(self) -> Topology:
        """The same service with its `version` raised by one."""
        return replace(self, version=self.version + 1)

    @cached_property
    def dead_letters(self) -> Topic:
        """The records that could not be handled, with the reason; shared by all versions."""
        return Topic(f"{self.service}.dead.v1")

    @cached_property
    def routes(self) -> Topic:
        """Which of its versions answers, and which acts in each partition; shared by all of them."""
        return Topic(f"{self.service}.routes.v1", "compact")

    @cached_property
    def parking(self) -> Topic:
        """What operators want done with parked records, in those records' partition."""
        return Topic(f"{self.group}.parking.v1")

    @cached_property
    def parked(self) -> Table:
        """The records that could not be handled, and those of the same key behind them."""
        return Table(PARKED, source=self.parking, keyed_by_id=False)

    @property
    def history_index(self) -> Table | None:
        """Where in `history` the events of each aggregate are; see shared.domain.history_index."""
        return None if self.history is None else Table(HISTORY_INDEX, source=self.history, keyed_by_id=False)

    @cached_property
    def outcomes(self) -> Table | None:
        """What became of the commands to this service's aggregates; see shared.domain.outcomes."""
        return next((outcomes_of(each, self.idempotency_hours) for each in self.tables if each.is_of_commands), None)

    def joined_with(self, *tables: Table) -> tuple[Table, ...]:
        """These tables, and all that any join leads to from there: they can only be emptied together."""
        found, more = {*tables}, True
        while more:
            linked = [{each, *each.folded} for each in self.tables if found & {each, *each.folded}]
            found, more = found.union(*linked), bool(set().union(*linked) - found)
        return tuple(each for each in self.tables if each in found)

    def needs_every_record(self, processor: str) -> bool:
        """Whether the processor's records can't be discarded: after a missing event, no later one can follow."""
        return self.history_index is not None and processor == self.history_index.name

    def all_tables(self) -> tuple[Table, ...]:
        """The declared tables and those of the engine."""
        return (*self.tables, *filter(None, [self.outcomes, self.history_index]), self.parked)

    @property
    def shown_tables(self) -> tuple[Table, ...]:
        """What operators see of who owns what: the declared tables, or that of parked records without any."""
        return self.tables or (self.parked,)

    def changelog(self, table: Table) -> Topic:
        """The compacted topic that holds the table's latest rows, named as Faust names it."""
        cleanup: Cleanup = "compact" if table.stored_ms == KEPT_FOR_EVER else "compact,delete"
        return Topic(f"{self.group}-{table.name}-changelog", cleanup, table.stored_ms)

    def is_changelog(self, name: str, table: Table) -> bool:
        """Whether this is the name of the table's changelog, in this version or another."""
        changelog = rf"{re.escape(self.service)}(-v\d+)?-{re.escape(table.name)}-changelog"
        return re.fullmatch(changelog, name) is not None

    def all_topics(self) -> tuple[Topic, ...]:
        """The declared topics, those that every service has, and the tables' changelogs."""
        changelogs = (self.changelog(table) for table in self.all_tables())
        return (*self.topics, self.dead_letters, self.parking, self.routes, *changelogs)


def _names(tables: Iterable[Table]) -> str:
    return ", ".join(each.name for each in tables) or "nothing"


def check_name(name: str) -> None:
    """Raises ValueError for a name that a topic can't have."""
    # no underscore: Kafka's metric names cannot tell it from a dot, so brokers warn about it
    if not _LEGAL_NAME.fullmatch(name):
        legal = "use only lower-case letters, digits, dots and hyphens, at most 249, the first a letter or a digit"
        raise ValueError(f"not a legal name: {name!r}; fix: {legal}")


def _check_parts(name: str) -> None:
    if not _PARTS.fullmatch(name):
        raise ValueError(f"{name} does not say its service, kind and version; fix: name it `<service>.<kind>.v<major>`")
