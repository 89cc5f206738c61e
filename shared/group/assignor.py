"""Ownership follows ability: partitions go to the workers that can handle all that any worker of the group can; and
warmth: of those, to one that need not restore their rows first.

Each worker says what its release can handle, and of which partitions it has a copy, when it joins. While that is the
same of all, Faust assigns as ever. The names that this module takes from Faust are listed with those of `internals`,
and tested with them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from faust.assignor.partition_assignor import (
    ClientAssignmentMapping,
    MemberAssignmentMapping,
    MemberMetadataMapping,
    PartitionAssignor,
)

from shared.engine.abilities import Abilities, chosen, lacking, refusal
from shared.engine.versions import MixedReleases
from shared.group import warming

if TYPE_CHECKING:
    from shared.group.app import WorkerApp

SAID = "abilities"  # by a member, in what it joins with: by name, compressed
WARM = "warm"  # likewise: the partitions of which it has a copy, if to restore one from nothing takes long
TOLD = "onefold"  # to a member, beside its assignment


class _Names:
    """Of the changelogs of every release: those of this one alone are no measure for what another worker is given."""

    def __contains__(self, topic: str) -> bool:
        return topic.endswith("-changelog")  # no other topic has such a name


class _Changelogs:
    """What an assignor asks Faust's tables for."""

    changelog_topics = _Names()
    data: Mapping[str, Any] = {}  # tables that each worker has all of


class AbleAssignor(PartitionAssignor):
    """lacks: what others of the group can handle, and this worker's release can't.
    awaited: the partitions that this worker gets once it has a warm copy of them; another one owns them until then.
    is_outdated: whether the assignment was made for another release: a worker of this name was one, and its session
    was not over.
    """

    app: WorkerApp
    lacks: Abilities = frozenset()
    awaited: Set[int] = frozenset()
    is_outdated = False

    def __init__(self, app: Any, replicas: int = 0) -> None:
        super().__init__(app, replicas)
        self._table_manager: Any = _Changelogs()
        self._able: Mapping[str, ConsumerProtocolMemberMetadata] = {}  # of the group that is being assigned
        self._awaiting: Mapping[str, Set[int]] = {}

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        said = super().metadata(topics)
        warm = sorted(self.app.warm())
        data = {**json.loads(said.user_data), SAID: _packed(self.app.abilities), WARM: warm}
        return ConsumerProtocolMemberMetadata(said.version, said.subscription, _as_json(data))

    def on_assignment(self, assignment: Any) -> None:
        """Raises MixedReleases for a worker that is refused."""
        told = json.loads(self._decompress(assignment.user_data)).get(TOLD, {})
        if "refusal" in told:
            raise MixedReleases(told["refusal"])
        self.is_outdated = told.get("for", _digest(self.app.abilities)) != _digest(self.app.abilities)
        self.lacks = lacking(self.app.abilities, _unpacked(told.get("top", "")))
        self.awaited = frozenset(told.get("awaited", ()))
        super().on_assignment(assignment)

    def _perform_assignment(
        self, cluster: ClusterMetadata, member_metadata: MemberMetadataMapping
    ) -> MemberAssignmentMapping:
        able = {member: _abilities(metadata) for member, metadata in member_metadata.items()}
        held = {
            member: len(self._get_client_metadata(metadata).assignment.active_tps)
            for member, metadata in member_metadata.items()
        }
        top = chosen(able, held)
        asks = {
            member: metadata if able[member] == top else _asking_for_nothing(metadata)
            for member, metadata in member_metadata.items()
        }
        self._able = {member: metadata for member, metadata in member_metadata.items() if able[member] == top}
        given = super()._perform_assignment(cluster, asks)
        return {
            member: self._with_notice(each, able[member], top, self._awaiting.get(member, ()))
            for member, each in given.items()
        }

    def _global_table_standby_assignments(
        self, assignments: ClientAssignmentMapping, partitions_by_topic: Mapping[str, int]
    ) -> ClientAssignmentMapping:
        """Faust's last step before it tells who owns what: here, its plan is changed by who has a warm copy."""
        rows = {topic for topic in partitions_by_topic if topic in self._table_manager.changelog_topics}
        counts = {partitions_by_topic[topic] for topic in rows}
        topics = [topic for topic, count in partitions_by_topic.items() if count in counts]
        planned = {
            number: member
            for member, given in assignments.items()
            for topic in rows
            for number in given.actives.get(topic, ())
        }
        before = {
            member: {
                tp.partition for tp in self._get_client_metadata(metadata).assignment.active_tps if tp.topic in rows
            }
            for member, metadata in self._able.items()
        }
        # who tells nothing is of an earlier release, and would not ask for what it awaits
        warm = {member: set(json.loads(each.user_data).get(WARM, planned)) for member, each in self._able.items()}
        now, later = warming.owners(planned, before, warm)
        for number, member in planned.items():
            if now[number] != member:
                _move(assignments, number, topics, rows, member, now[number])
        self._awaiting = {
            member: {number for number, next_owner in later.items() if next_owner == member != now[number]}
            for member in assignments
        }
        return super()._global_table_standby_assignments(assignments, partitions_by_topic)

    def _with_notice(
        self, given: Any, own: Abilities, top: Abilities, awaited: Iterable[int]
    ) -> ConsumerProtocolMemberAssignment:
        told: dict[str, Any] = {"for": _digest(own), "awaited": sorted(awaited)}
        if lacking(top, own):
            told["refusal"] = refusal(self.app.topology.service, own, top)
        elif own != top:
            told["top"] = _packed(top)
        data = {**json.loads(self._decompress(given.user_data)), TOLD: told}
        return ConsumerProtocolMemberAssignment(given.version, given.assignment, self._compress(_as_json(data)))


def _move(
    assignments: ClientAssignmentMapping, number: int, topics: Iterable[str], rows: Set[str], planned: str, owner: str
) -> None:
    """The planned owner is given a copy of the rows instead."""
    for topic in topics:
        if number not in (given := assignments[planned].actives.get(topic, [])):
            continue
        given.remove(number)
        assignments[owner].actives.setdefault(topic, []).append(number)
        if topic in rows:
            assignments[planned].standbys.setdefault(topic, []).append(number)
            if number in (copies := assignments[owner].standbys.get(topic, [])):
                copies.remove(number)


def _abilities(metadata: Any) -> Abilities:
    """An older release of Onefold says nothing: its workers are given as much as they subscribe to."""
    said = json.loads(metadata.user_data).get(SAID)
    return frozenset(metadata.subscription) if said is None else _unpacked(said)


def _asking_for_nothing(metadata: Any) -> ConsumerProtocolMemberMetadata:
    return ConsumerProtocolMemberMetadata(metadata.version, [], metadata.user_data)


def _packed(abilities: Abilities) -> str:
    return base64.b64encode(zlib.compress("\n".join(sorted(abilities)).encode())).decode()


def _unpacked(packed: str) -> Abilities:
    return frozenset(zlib.decompress(base64.b64decode(packed)).decode().split("\n")) if packed else frozenset()


def _digest(abilities: Abilities) -> str:
    return hashlib.blake2b("\n".join(sorted(abilities)).encode(), digest_size=8).hexdigest()


def _as_json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data).encode()
