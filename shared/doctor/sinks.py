"""Checks of sinks: tables of a database outside that nobody fills, or that stay behind whoever does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from shared.doctor.finding import Finding, Severity, dev
from shared.doctor.snapshot import Filled, Snapshot
from shared.kafka.brokers import Brokers
from shared.kafka.stamps import stamps
from shared.runtime.checkout import found_services
from shared.runtime.declared import declared_by
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.sinks.database import Database, DatabaseUnavailable, Fenced, SinkState
from shared.sinks.process import begun_database
from shared.sinks.sink import Sink
from shared.topology.topics import Topology

_LATE_S = 3.0  # nobody fills it, and one that starts again has begun by then
_STUCK_S = 30.0
_PAUSE_S = 1.0
_SILENT = 2  # leases, for which a sink's owner may say nothing: it says something three times in each


class _At(NamedTuple):
    sink: Sink
    service: str
    state: SinkState
    unread: Mapping[Place, tuple[int, int]]
    """From where to where."""


def read_sinks(topologies: Sequence[Topology], settings: Settings, brokers: Brokers) -> list[Filled]:
    """Of sinks that were begun. One whose position stands is looked at twice, a second apart."""
    having = {*found_services(having="sinks.py")}
    declared = [
        (each, sink) for each in topologies if each.service in having for sink in declared_by(each.service, "sinks")
    ]
    database = begun_database(settings) if declared else None
    if database is None:
        return []
    with closing(database):
        try:
            found = [at for topology, sink in declared if (at := _at(database, brokers, topology, sink)) is not None]
            firsts = [(place, first) for at in found for place, (first, _) in at.unread.items()]
            stamped, now = stamps(settings.bootstrap, firsts), time.time()
            filled = [_filled(database, at, stamped, now, settings) for at in found]
            if any(each.waits_s >= _STUCK_S for each in filled):
                time.sleep(_PAUSE_S)
                later = [database.state(at.sink).positions for at in found]
                filled = [
                    each._replace(stands=at.state.positions == positions)
                    for at, each, positions in zip(found, filled, later, strict=True)
                ]
        except DatabaseUnavailable as failure:
            return [Filled(", ".join({each.service: 0 for each, _ in declared}), "", problem=str(failure))]
    return filled


def _at(database: Database, brokers: Brokers, topology: Topology, sink: Sink) -> _At | None:
    """None before it was begun."""
    with suppress(Fenced):
        state, topic = database.state(sink), sink.source.topic_in(topology)
        positions = {Place(topic, number): position for number, position in state.positions.items()}
        ends = brokers.bounds(list(positions)) if brokers.has(topic) else {}
        unread = {
            place: (positions[place], found.stable) for place, found in ends.items() if positions[place] < found.stable
        }
        return _At(sink, topology.service, state, unread)
    return None


def _filled(
    database: Database, at: _At, stamped: Mapping[tuple[Place, int], float], now: float, settings: Settings
) -> Filled:
    begun = [stamped[place, first] for place, (first, _) in at.unread.items() if (place, first) in stamped]
    silent_s = now - (database.written_ms(at.sink) or 0) / 1000
    lives = at.state.lease.owner != "" and silent_s < _SILENT * settings.session_timeout_s
    return Filled(
        at.service,
        at.sink.table.name,
        owner=at.state.lease.owner if lives else "",
        unread=sum(end - first for first, end in at.unread.values()),
        waits_s=max((now - each for each in begun), default=0.0),
        reason=at.state.waits,
    )


def check_sinks(seen: Snapshot) -> Iterator[Finding]:
    for each in seen.sinks:
        waits = f"{each.unread:,} offsets wait, the oldest for {each.waits_s:,.0f} s"
        if each.problem:
            yield Finding(
                Severity.WARNING,
                "sink.database",
                f"the database of the sinks of {each.service} gives no answer",
                each.problem,
                "its tables stay as they are, and how far they are is not known",
                "start it, or correct ONEFOLD_SINK_DATABASE",
            )
        elif each.reason and each.unread:
            yield Finding(
                Severity.WARNING,
                "sink.waits",
                f"{each.table} of {each.service} waits",
                f"{waits}; {each.reason}",
                "whoever reads that database sees what was",
                "resolve that, and it goes on by itself; if its process is gone, start it again",
            )
        elif not each.owner and each.unread and each.waits_s >= _LATE_S:
            yield Finding(
                Severity.WARNING,
                "sink.stands",
                f"nobody fills {each.table} of {each.service}",
                waits,
                "whoever reads that database sees what was; what waits longer than retention has to be filled anew",
                dev("sink", "run", each.service),
            )
        elif each.stands and each.waits_s >= _STUCK_S:
            yield Finding(
                Severity.WARNING,
                "sink.stuck",
                f"{each.table} of {each.service} does not go on",
                f"{waits}, and nothing was written for a second by {each.owner}",
                "whoever reads that database sees what was",
                f"look in the log of {each.owner}: it says what the database refuses, or can't be read, and the fix",
            )
