"""Which processors a worker runs, and whether they fit each other and the topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from shared.domain.decider import Decider
from shared.domain.outcomes import OUTCOME_CODEC
from shared.domain.row import Codec
from shared.engine.expiry import ExpiringProcessor
from shared.engine.processors import (
    AggregateProcessor,
    HistoryIndexProcessor,
    Listener,
    PolicyProcessor,
    Processor,
    ProjectionProcessor,
    PublicationProcessor,
    RekeyProcessor,
    TimerProcessor,
)
from shared.engine.references import ReferenceProcessor
from shared.parking.parked import PARKED_CODEC
from shared.tables.indexing import fields_of, formats, kinds
from shared.topology.declaration import Service
from shared.topology.projection import Projection
from shared.topology.topics import Table, Topic, Topology


def processors_of(service: Service) -> list[Processor]:
    """What its workers run."""
    decider = service.decider
    aggregates = (
        [] if decider is None else [AggregateProcessor(decider, table=service.aggregates, events=service.events)]
    )
    rekeys = [RekeyProcessor(each, service.topology.partitions) for each in service.rekeys]
    joins = {join: service.parts_of(join) for join in service.joins}
    return [
        *aggregates,
        *rekeys,
        *map(PolicyProcessor, service.policies),
        *map(PublicationProcessor, service.publications),
        *map(TimerProcessor, service.timers),
        *(_projecting(projection)(projection, joins) for projection in service.projections),
    ]


def _projecting(projection: Projection[Any, Any]) -> type[ProjectionProcessor]:
    if projection.table.everywhere:
        return ReferenceProcessor
    return ProjectionProcessor if projection.table.expires is None else ExpiringProcessor


def topics_of(
    topology: Topology, processors: Iterable[Processor], reads: Iterable[Topic] = ()
) -> tuple[set[str], set[str]]:
    """The topics that a service reads, and those that it writes. reads: what no processor does, as a sink's source."""
    processors = list(processors)
    read = {*(topic.name for topic in reads), *(each.source.name for each in processors)}
    return read, {topology.dead_letters.name, *(topic.name for each in processors for topic in each.writes)}


def wired(topology: Topology, processors: Sequence[Processor]) -> Sequence[Processor]:
    """The processors, if they fit `topology`, with a HistoryIndexProcessor for the history that it declares, if any.

    Raises ValueError, also for a second aggregate, for a declared table without a processor, for one of a processor
    that is not declared, for timers that nothing reads, for a topic whose name tells another kind, for an index on a
    field that no phase of the state has, or that holds no values in order, for rows that expire at what is no instant,
    and for a topic that loses records before they are handled.
    """
    _refuse_second_aggregate(topology, processors)
    _refuse_half_wired(topology, processors)
    _refuse_other_kinds(topology, processors)
    _refuse_losses(topology, processors)
    _refuse_useless_indexes(topology, processors)
    _refuse_timeless(topology, processors)
    if topology.history is None or topology.history_index is None:
        return processors
    for each in processors:
        if each.source == topology.history and each.copies:
            raise ValueError(
                f"{each.name} also reads {each.source.name}, which the next version reads from its start, so it would "
                f"copy everything again; fix: move it to a service of its own, or drop `history` from topology.py"
            )
    for each in processors:
        if isinstance(each, AggregateProcessor) and each.events == topology.history:
            if each.decider.initial is None:
                raise ValueError(
                    f"{topology.service}: its initial state is None, which means unknown in a history; "
                    f"fix: make it a phase, such as `class Unopened(State)`"
                )
            return (
                *processors,
                HistoryIndexProcessor(each.decider, source=topology.history, table=topology.history_index),
            )
    raise ValueError(f"{topology.service}: no aggregate writes its history, {topology.history.name}")


def decider_of(processors: Sequence[Processor]) -> Decider[Any, Any, Any] | None:
    """Of the service's only aggregate; None where it has none."""
    return next((each.decider for each in processors if isinstance(each, AggregateProcessor)), None)


def _refuse_second_aggregate(topology: Topology, processors: Sequence[Processor]) -> None:
    """Callers wait for an outcome by the aggregate's id, and Spark folds one topic of events with one decider."""
    tables = [each.name for each in processors if isinstance(each, AggregateProcessor)]
    if len(tables) > 1:
        raise ValueError(
            f"{topology.service} has several aggregates, {', '.join(tables)}, and a service has one; "
            f"fix: put each of the others into a service of its own"
        )


def _refuse_half_wired(topology: Topology, processors: Sequence[Processor]) -> None:
    found = filled(processors)
    for table in topology.tables:
        if table not in found:
            raise ValueError(
                f"{topology.service}: nothing fills the table {table.name}; "
                f"fix: give its Service the {'join' if table.joins else 'decider or the projection'} that does"
            )
    for table in found:
        if table not in topology.tables:
            raise ValueError(
                f"{topology.service}: its topology lacks the table {table.name}, which a processor fills; "
                f"fix: add it to `tables` in topology.py"
            )
    for timers in (topic for topic in topology.topics if topic.kind == "timers"):
        if all(each.source != timers for each in processors):
            raise ValueError(
                f"{topology.service}: nothing reads {timers.name}, so no timer ever rings; fix: give its Service "
                f"a Timer with that source"
            )


def _refuse_other_kinds(topology: Topology, processors: Sequence[Processor]) -> None:
    for each in processors:
        for topic, kind in _kinds_of(each):
            if topic.kind != kind:
                raise ValueError(
                    f"{topology.service}: {topic.name} holds {kind}, and the mirror and the ACLs go by topics' names; "
                    f"fix: call it {topology.service}.{kind}.v1, and if it has records, copy them there first"
                )


def _kinds_of(processor: Processor) -> Sequence[tuple[Topic, str]]:
    """The topics whose kind is fixed by what the processor does with them."""
    match processor:
        case AggregateProcessor():
            return (processor.source, "commands"), (processor.events, "events")
        case TimerProcessor():
            return ((processor.source, "timers"),)
        case PublicationProcessor(publication=publication):
            return (processor.source, "events"), (publication.topic, "public")
        case _:
            return ()


def _refuse_losses(topology: Topology, processors: Sequence[Processor]) -> None:
    for each in processors:
        for topic in () if each.repeatable else (each.source, *each.writes):
            if "compact" in topic.cleanup:
                raise ValueError(
                    f"{topology.service}: {topic.name} is compacted, so all but the last record of each key are lost, "
                    f"handled or not; fix: leave out its `cleanup` in topology.py"
                )
        if each.delay_s and 0 <= each.source.retention_ms <= each.delay_s * 1000:
            raise ValueError(
                f"{topology.service}: {each.name} waits {each.delay_s:g} s, and {each.source.name} keeps a record for "
                f"{each.source.retention_ms / 1000:g} s; fix: raise its retention_ms in topology.py, or wait less"
            )


def _refuse_useless_indexes(topology: Topology, processors: Sequence[Processor]) -> None:
    for table, codec in filled(processors).items():
        for field in {field: None for index in table.indexes for field in fields_of(index)}:
            held = kinds(codec.state_type, field)
            if not held:
                raise ValueError(
                    f"{topology.service}: the state in the table {table.name} has no field {field!r}; "
                    f"fix: correct its indexes in topology.py"
                )
            if not held <= {"null", "string"} and field in _referring(topology, table):
                raise ValueError(
                    f"{topology.service}: {field!r} in the table {table.name} names a row of a reference table, and "
                    f"keys are text; fix: make it a text, or null"
                )
            if sized := sorted(held & {"decimal", "duration"}):
                raise ValueError(
                    f"{topology.service}: {field!r} in the table {table.name} is a {sized[0]}, which would "
                    f"sort as text; fix: index a whole number, such as cents or seconds"
                )
            if set() < held - {"null"} <= {"array", "object", "encrypted"}:
                raise ValueError(
                    f"{topology.service}: {field!r} in the table {table.name} is {' or '.join(sorted(held))} "
                    f"in JSON, and an index holds null, booleans, numbers or text; fix: index a field that holds these"
                )


def _referring(topology: Topology, table: Table) -> set[str]:
    """The fields of its rows that name those of reference tables."""
    return {field for each in topology.tables if each.joins[:1] == (table,) for field, _ in each.refers}


def _refuse_timeless(topology: Topology, processors: Sequence[Processor]) -> None:
    for each in processors:
        if isinstance(each, ExpiringProcessor) and each.table is not None and each.table.expires is not None:
            held = formats(each.projection.state, each.table.expires)
            if held != {"date-time"}:
                raise ValueError(
                    f"{topology.service}: rows of {each.name} expire at {each.table.expires!r}, which is no instant; "
                    f"fix: give that field the type Instant, or Instant | None"
                )


def by_source(topology: Topology, processors: Sequence[Processor]) -> dict[str, list[Processor]]:
    """The processors by the name of their source. Raises ValueError for those that can't share a worker.

    The parking topic has no processor: the engine itself does what operators request. Listeners get in `own` the event
    types of the aggregate whose topic they read. Aggregates get the table of their commands' outcomes, and their
    history index.
    """
    _refuse_ambiguous(processors)
    found: dict[str, list[Processor]] = {topology.parking.name: []}
    for processor in processors:
        found.setdefault(processor.source.name, []).append(processor)
    if mixed := [name for name, readers in found.items() if len({reader.delay_s for reader in readers}) > 1]:
        raise ValueError(
            f"a Timer and other processors, which would wait as long, read {', '.join(mixed)}; fix: give the Timer a "
            f"topic of its own"
        )
    for aggregate in [each for each in processors if isinstance(each, AggregateProcessor)]:
        aggregate.outcomes = topology.outcomes or aggregate.outcomes
        aggregate.history_index = next(
            (each.table for each in processors if isinstance(each, HistoryIndexProcessor)), None
        )
        for reader in found.get(aggregate.events.name, []):
            if isinstance(reader, Listener):
                reader.own = frozenset(event.TYPE for event in aggregate.decider.events)
    return found


def lagging(processors: Mapping[str, Sequence[Processor]]) -> frozenset[str]:
    """The sources of our own events, where they lead to nothing but rows, copies and public events: callers have their
    answers before.

    processors: by source.
    """
    own = {each.events.name for readers in processors.values() for each in readers if each.events is not None}
    return frozenset(
        source
        for source in own & processors.keys()
        if all(each.repeatable or isinstance(each, PublicationProcessor) for each in processors[source])
    )


def expiring(processors: Mapping[str, Sequence[Processor]]) -> frozenset[str]:
    """The sources of views whose rows expire. processors: by source."""
    return frozenset(
        source for source, some in processors.items() if any(isinstance(x, ExpiringProcessor) for x in some)
    )


def codecs_of(topology: Topology, processors: Sequence[Processor]) -> Mapping[str, Codec[Any]]:
    """The codecs of all tables that have rows, by the table's name."""
    rows = {table.name: codec for table, codec in filled(processors).items()}
    outcomes = dict[str, Codec[Any]]({topology.outcomes.name: OUTCOME_CODEC} if topology.outcomes else {})
    return {topology.parked.name: PARKED_CODEC, **outcomes, **rows}


def filled(processors: Sequence[Processor]) -> Mapping[Table, Codec[Any]]:
    """The tables that they fill, but for outcomes, with the codecs of their rows."""
    folded = {each.table: each.codec for each in processors if each.table is not None and each.codec is not None}
    return folded | {table: each.beside[table] for each in processors for table in each.joined}


def _refuse_ambiguous(processors: Sequence[Processor]) -> None:
    """Raises ValueError for two processors whose parked records, or whose commands, could not be told apart."""
    names = Counter(processor.name for processor in processors)
    if repeated := [name for name, times in names.items() if times > 1]:
        raise ValueError(
            f"several processors are called {', '.join(repeated)}; fix: rename the function of one policy, or the "
            f"table of one aggregate or view; give one Rekey a `name`; of a Timer, keep one for each source, "
            f"of a Publication, one for each topic"
        )
    for one, other in combinations([each for each in processors if isinstance(each, PolicyProcessor)], 2):
        if one.policy.meets(other.policy):
            raise ValueError(
                f"{one.name} and {other.name} answer the same event on the same topic: give one `Policy` a `name`"
            )
