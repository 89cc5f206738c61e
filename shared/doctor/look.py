"""Gathers a snapshot from the brokers and from this machine's stores; what workers say is handed in."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from shared.doctor.certificates import read_certificates
from shared.doctor.leftovers import former_versions
from shared.doctor.sinks import read_sinks
from shared.doctor.snapshot import Snapshot, Told
from shared.kafka.brokers import Bounds, Brokers, Positions, by_place
from shared.kafka.stamps import stamps
from shared.operations.provision import TopicSpec, declared_topics, found_topics, placed
from shared.operations.tools import ToolFailed, tool_table
from shared.runtime.jars import JarsUnavailable
from shared.runtime.java import JavaUnavailable
from shared.runtime.positions import Place
from shared.runtime.routes import Role
from shared.runtime.settings import Settings
from shared.topology.topics import Topology

_MANY = 500  # unread records of which it is worth a second to see whether there are more and more
_PACE_S = 1.0
_ENDED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
_COORDINATED = "__transaction_state"
_OF_BROKERS = ("__consumer_offsets", _COORDINATED)


def look(topologies: Sequence[Topology], settings: Settings, told: Mapping[str, Told]) -> Snapshot:
    """Blocking. Raises ProvisionError or BrokersUnavailable."""
    placement = placed(settings.bootstrap)
    declared = declared_topics(topologies, settings)
    found = found_topics([*declared, *_OF_BROKERS], settings.bootstrap)
    brokers = Brokers(settings.bootstrap)
    former = [each.group for each in former_versions(topologies)]
    copies = [(place, each) for place, each in placement.copies.items() if place.topic in declared]
    led = [place for place, each in copies if placement.brokers & {*each.in_sync}]
    positions, bounds = _progress(brokers, topologies, led)
    seen = Snapshot(
        settings,
        topologies,
        time.time(),
        placement,
        declared | {name: _safe(found[name], settings) for name in _OF_BROKERS if name in found},
        found,
        bounds,
        {group: brokers.members(group) for group in [*positions, *former]},
        positions,
        told=told,
        stores=sorted(each for each in settings.data_dir.glob("*-*") if each.is_dir()),
        certificates=read_certificates(settings, placement.addresses),
        sinks=read_sinks(topologies, settings, brokers),
    )
    offsets = {*seen.open_from(), *((each.place, each.first) for each in seen.unread()), *seen.oldest_letters()}
    seen = replace(seen, stamped=stamps(settings.bootstrap, offsets), now=time.time())
    if seen.long_open() or any(each.records >= _MANY for each in seen.unread()):
        time.sleep(_PACE_S)
        seen = _looked_again(seen, *_progress(brokers, topologies, list(bounds)))
    return replace(seen, holder=_holder(seen))


def _looked_again(seen: Snapshot, positions: dict[str, dict[Place, int]], bounds: dict[Place, Bounds]) -> Snapshot:
    """Without transactions that have ended: a worker's does in milliseconds, however old it looks by a wrong clock."""
    later = list(replace(seen, positions=positions, bounds=bounds).unread())
    stable = {place: each._replace(stable=min(bounds[place].stable, each.end)) for place, each in seen.bounds.items()}
    return replace(seen, bounds=stable, later=later)


def _progress(
    brokers: Brokers, topologies: Sequence[Topology], places: Sequence[Place]
) -> tuple[dict[str, dict[Place, int]], dict[Place, Bounds]]:
    """The groups' positions, then the bounds of these partitions."""
    positions = {each.group: by_place(read_on(each, brokers.positions(each.group))) for each in topologies}
    return positions, brokers.bounds(places)


def read_on(topology: Topology, positions: Mapping[str, Positions]) -> Mapping[str, Positions]:
    """Without what another version handles: where this one has no turn, that is all but what its views show."""
    shown = {table.source.name for table in topology.all_tables() if not table.is_of_commands}
    turns = positions.get(topology.routes.name, {})
    acts = {number: Role.of(turns.get(number)).acts for number in range(topology.partitions)}
    return {
        topic: {number: at for number, at in found.items() if acts.get(number, True) or topic in shown}
        for topic, found in positions.items()
        if topic != topology.routes.name  # says whose turn it is
    }


def _holder(seen: Snapshot) -> str | None:
    """Whose transaction is open longest; empty if it is in the log and no coordinator knows it; None if nobody can say:
    brokers that are away may coordinate it.
    """
    if (begun := seen.longest_open()) is None or not seen.in_sync(_COORDINATED):
        return None
    (place, offset), bootstrap = begun, seen.settings.bootstrap
    where = ["--topic", place.topic, "--partition", str(place.number)]
    try:
        with ThreadPoolExecutor() as pool:  # a second each
            listed = pool.submit(tool_table, "transactions", ["list"], bootstrap)
            writing = tool_table("transactions", ["describe-producers", *where], bootstrap)
            going = [each for each in listed.result() if each["TransactionState"] not in _ENDED]
    except (JavaUnavailable, JarsUnavailable, ToolFailed):
        return None
    owners = {each["ProducerId"]: each["TransactionalId"] for each in going}
    began = {each["CurrentTransactionStartOffset"]: each["ProducerId"] for each in writing}
    return owners.get(began[str(offset)], "") if str(offset) in began else None


def _safe(found: TopicSpec, settings: Settings) -> TopicSpec:
    """What a topic of the brokers' own needs to be, which they make by their own settings: as safe as all others."""
    in_sync = max(int(found.config["min.insync.replicas"]), settings.min_isr)
    return TopicSpec(found.partitions, settings.replication, {"min.insync.replicas": str(in_sync)})
