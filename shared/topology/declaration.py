"""All that a service declares, in one value: the worker, Spark, the tools and the tests are given it."""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from shared.domain.decider import Decider
from shared.topology.join import Join
from shared.topology.policy import Policy
from shared.topology.projection import Projection
from shared.topology.publication import Publication
from shared.topology.rekey import Rekey
from shared.topology.timer import Timer
from shared.topology.topics import Table, Topic, Topology


@dataclass(frozen=True, eq=False)
class Service:
    """What a service is, but for its routes and its settings: SERVICE in its `service.py`.

    topology     its topics and tables.
    decider      its aggregate. The topology has exactly one table that its commands feed, and one topic of its events.
    rekeys, policies, timers, projections, joins, publications
                 all that it has of each kind. What is left out here runs neither in a worker nor in Spark.
    reads        other services' topics that none of these reads, such as a sink's source. Brokers that check access let
                 the service read those that are declared, and no others. They may
    have another number of partitions.
    writes: of several topics of events in the topology, the decider's.

    Raises ValueError for a decider without that table or that topic, for another service's commands in `reads`, for a
    join of a view that no projection fills, or of a table that another join fills, and for a publication that reads or
    writes what is not the service's own.
    """

    topology: Topology
    _: KW_ONLY
    decider: Decider[Any, Any, Any] | None = None
    rekeys: Sequence[Rekey] = ()
    policies: Sequence[Policy] = ()
    timers: Sequence[Timer] = ()
    projections: Sequence[Projection[Any, Any]] = ()
    joins: Sequence[Join[Any]] = ()
    publications: Sequence[Publication] = ()
    reads: Sequence[Topic] = ()
    writes: Topic | None = None

    def __post_init__(self) -> None:
        if asked := [topic.name for topic in self._of_others(self.reads) if topic.kind == "commands"]:
            raise ValueError(
                f"{self.topology.service} reads {asked[0]}, and only a service itself reads its commands; "
                f"fix: read its events, or send it commands with a policy"
            )
        for join in self.joins:
            self.parts_of(join)
            if [each.table for each in self.joins].count(join.table) > 1:
                raise ValueError(f"{self.topology.service}: two joins fill {join.table.name}; fix: keep one")
        self._check_references()
        for each in self.publications:
            if others := self._of_others([each.source, each.topic]):
                raise ValueError(
                    f"{self.topology.service} publishes from {each.source.name} to {each.topic.name}, and "
                    f"{others[0].name} is not its own; fix: declare it in topology.py, or let its owner publish"
                )
        if self.decider is not None:
            self._one("tables of commands", [table.name for table in self._kept], "declare one in topology.py")
            fix = "declare one in topology.py, or name it as `writes` in service.py"
            self._one("topics of events", [topic.name for topic in self._written], fix)

    @property
    def aggregates(self) -> Table:
        """The table that the decider's commands fill."""
        return self._kept[0]

    @property
    def events(self) -> Topic:
        """The topic of the decider's events."""
        return self._written[0]

    def _check_references(self) -> None:
        """What is in each partition goes to reference tables, and nothing else does, so it counts once."""
        copied = {topic for rekey in self.rekeys for topic in rekey.everywhere}
        for table in self.topology.tables:
            if table.everywhere != (not table.joins and table.source in copied):
                what, fix = "is no", "declare it with Table.reference"
                if table.everywhere:
                    what, fix = "is a", "name its source in `everywhere` of a Rekey"
                raise ValueError(
                    f"{self.topology.service}: {table.name} {what} reference table, and {table.source.name} "
                    f"{'lacks' if table.everywhere else 'has'} each event in each partition; fix: {fix}"
                )
        others: list[Rekey | Policy | Timer | Publication] = [*self.rekeys, *self.policies]
        others += [*self.timers, *self.publications]
        if read := [each.source.name for each in others if each.source in copied]:
            raise ValueError(
                f"{self.topology.service}: {read[0]} has each event once for each partition, and whoever else reads it "
                f"would do as much for each; fix: read what it is copied from"
            )

    def parts_of(self, join: Join[Any]) -> Sequence[Projection[Any, Any]]:
        """The projections of its `parts`, in their order. Raises ValueError if one has none."""
        filled = {each.table: each for each in self.projections}
        if missing := [each.name for _, each in join.parts if each not in filled]:
            raise ValueError(
                f"{self.topology.service}: {join.table.name} joins {missing[0]}, which no projection fills; "
                f"fix: give its Service the Projection that does"
            )
        return [filled[each] for _, each in join.parts]

    @property
    def handled(self) -> Sequence[Topic]:
        """Other services' topics whose records its workers handle: of as many partitions as its own."""
        folded = [table.source for table in self.topology.tables]
        copied = [rekey.source for rekey in self.rekeys]
        answered = [policy.source for policy in self.policies]
        return self._of_others([*folded, *copied, *answered, *(timer.source for timer in self.timers)])

    @property
    def neighbours(self) -> Sequence[Topic]:
        """Other services' topics: events that it reads, commands that it sends."""
        asked = [topic for policy in self.policies for topic in policy.commands]
        return self._of_others([*self.handled, *asked, *(timer.target for timer in self.timers), *self.reads])

    def _of_others(self, topics: Iterable[Topic]) -> Sequence[Topic]:
        own = self.topology.all_topics()
        return [each for each in dict.fromkeys(topics) if each not in own]

    @property
    def _kept(self) -> Sequence[Table]:
        return [table for table in self.topology.tables if table.is_of_commands]

    @property
    def _written(self) -> Sequence[Topic]:
        prefix = f"{self.topology.service}.events."
        events = [topic for topic in self.topology.topics if topic.name.startswith(prefix)]
        return [topic for topic in events if self.writes in (None, topic)]

    def _one(self, what: str, found: Sequence[str], fix: str) -> None:
        if len(found) != 1:
            names = ", ".join(found) or "none"
            raise ValueError(f"{self.topology.service} has a decider, and {len(found)} {what}: {names}; fix: {fix}")
