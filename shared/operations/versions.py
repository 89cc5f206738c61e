"""Versions of a service, side by side: what stands, how their rows compare, which of them answers, and which one acts.

A plan is made of what is found on the brokers, and says what will be done, or is refused. Each step may have been taken
already, so whoever was interrupted does the same again. Of a service that decides, sends, copies or publishes, one
version has the turn in each partition: its workers give it to the next one, in a transaction.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from msgspec import Raw, Struct
from msgspec.json import decode

from shared.domain.errors import OnefoldError
from shared.kafka.access import ANSWER_S, client_config
from shared.kafka.brokers import Brokers, BrokersUnavailable, Positions, explained
from shared.kafka.producer import producer_config
from shared.kafka.spans import Span, read, read_all, unread
from shared.operations.provision import provision
from shared.parking.parked import PARKED_CODEC, Parked, is_note
from shared.runtime.positions import Place
from shared.runtime.routes import PARTITION, TURN, Active, Deed, Role, Routes, Turn, owner_key
from shared.runtime.settings import Settings
from shared.topology.declaration import Service
from shared.topology.topics import Table, Topology

CATCH_UP_S = 20.0
_PAUSE_S = 0.2
L = TypeVar("L")


class VersionsRefused(OnefoldError):
    """What was asked for would be unsafe as things are; nothing was changed.

    Operator action: do what the message says after `fix:`.
    """


class Step(NamedTuple):
    """says: what it does, in the words that the plan is printed with."""

    says: str
    do: Callable[[], None]


class Standing(NamedTuple):
    """One version. members: of its group. lag: records that it has still to read; None if it has no position yet."""

    version: int
    group: str
    members: Sequence[str]
    lag: int | None
    active: bool


class Differing(NamedTuple):
    """A row that two versions have otherwise. one, other: the states as JSON; None where there is no row."""

    partition: int
    key: bytes
    one: bytes | None
    other: bytes | None

    @property
    def fields(self) -> Mapping[str, tuple[Any, Any]]:
        """Those that differ; all of a row that one lacks."""
        return differing(*(None if state is None else decode(state) for state in (self.one, self.other)))


@dataclass
class Compared:
    """Of one table. equal: rows that both have alike. moved: that changed while they were compared, and so were not."""

    table: str
    equal: int = 0
    moved: int = 0
    differ: list[Differing] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """All that were compared."""
        return self.equal + len(self.differ)

    @property
    def by_field(self) -> Mapping[str, int]:
        """In how many rows each field differs."""
        return Counter(name for each in self.differ for name in each.fields)


class _Row(Struct, frozen=True, gc=False):
    state: Raw
    offset: int
    made_of: dict[str, tuple[int, int]] = {}


class Versions:
    """Of one service, as this checkout declares it. Blocking. Every method raises BrokersUnavailable."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self.service = service
        self.topology = service.topology
        self._settings = settings
        self._brokers = Brokers(settings.bootstrap)

    def of(self, version: int) -> Topology:
        return replace(self.topology, version=version)

    def routes(self) -> Routes:
        """As they are now."""
        routes, topic = Routes(), self.topology.routes
        if self._brokers.has(topic.name):
            for partition, key, value in read_all(self._brokers, topic.name):
                routes.apply(key, value, partition)
        return routes

    def standing(self) -> list[Standing]:
        """The versions of which anything stands, up to the one behind the declared."""
        active = self.routes().active
        found = []
        for version in range(1, self.topology.version + 2):
            group = self.of(version).group
            members, positions = self._brokers.members(group), self._brokers.positions(group)
            if members or positions:
                lag = self._unread(version, self._ends()) if positions else None
                is_active = version == active.version if active else bool(members)
                found.append(Standing(version, group, members, lag, is_active))
        return found

    def deploy(self) -> Iterator[Step]:
        """Raises VersionsRefused."""
        self._refuse_unfollowed()
        new, routes = self.topology, self.routes()
        active = routes.active
        if new.version == 1:
            raise self._refusal("only version 1 is declared", "raise `version` in topology.py, beside the change")
        stays = active or Active(version=new.version - 1)
        if stays.version > new.version:
            fix = f"raise `version` above {stays.version} in topology.py"
            raise self._refusal(f"version {stays.version} is active, and {new.version} is older", fix)
        if not self._brokers.positions(self.of(stays.version).group):
            fix = f"start its workers; or if {new.group} is to be the only one, `rebuild {new.service}`"
            raise self._refusal(f"{self.of(stays.version).group} has read nothing yet", fix)
        self._refuse_third(stays.version)
        positions = self._positions(new.version)
        if not positions:
            self._refuse_cut_history()
        yield Step(f"topics of {new.group} are created, where they are missing", self._provision)
        if active is None:
            yield Step(f"version {stays.version} answers all requests", lambda: self._say(stays))
        numbers = range(new.partitions) if self.acts else ()
        if missing := [number for number in numbers if routes.turn(number) is None]:
            stays_at = f"version {stays.version} has its turn in {len(missing)} partitions"
            turn = Turn(number=0, version=stays.version, giver=stays.version)
            yield Step(stays_at, lambda: self._say_turns(dict.fromkeys(missing, turn)))
        if not positions:
            starts = self._starts()
            begins = f"{new.group} begins at the first record of {', '.join(starts)}"
            yield Step(begins, lambda: self._brokers.commit(new.group, {**starts, **self._held_back(stays.version)}))

    def switch(self, by: str, reason: str) -> Iterator[Step]:
        """To the declared version. Raises VersionsRefused."""
        routes, version = self.routes(), self.topology.version
        if routes.active is None:
            raise self._refusal("it has one version", f"`deploy {self.topology.service}` first")
        if (active := routes.active.version) != version:
            self._refuse_unfit(version, active)
            yield from self._lacks(version)
            yield self._answers(Active(version=version, former=active, by=by, reason=reason))
        yield from self._takes_turns(version, routes)

    def rollback(self, by: str, reason: str) -> Iterator[Step]:
        """To the version that answered before the last switch. Raises VersionsRefused."""
        routes = self.routes()
        former = routes.active.former if routes.active else None
        if (
            routes.active is not None
            and former is None
            and (left := [*self._takes_turns(routes.active.version, routes)])
        ):
            yield from left  # of one that was interrupted
            return
        if routes.active is None or former is None:
            fix = f"`versions {self.topology.service}` shows what answers"
            raise self._refusal("there is no switch to take back", fix)
        self._refuse_unfit(former, routes.active.version)
        yield from self._lacks(former)
        yield self._answers(Active(version=former, by=by, reason=reason))
        yield from self._takes_turns(former, routes)

    def retire(self, version: int) -> Iterator[Step]:
        """Deletes all that is of this version alone. Raises VersionsRefused."""
        gone, routes = self.of(version), self.routes()
        if routes.active is None:
            raise self._refusal("it has one version", f"`deploy {self.topology.service}` the next one first")
        if routes.active.version == version:
            raise self._refusal(f"version {version} is active", f"`switch {self.topology.service}`, or name another")
        if self.acts and any(routes.has_turn(version, number) for number in range(self.topology.partitions)):
            raise self._refusal(f"version {version} still has its turn in some partitions", "`switch`, or `rollback`")
        if members := self._brokers.members(gone.group):
            fix = "stop every worker of it; a killed one counts until its session times out"
            raise self._refusal(f"{', '.join(members)} in the group {gone.group}", fix)
        if routes.active.former == version:
            left = routes.active.model_copy(update={"former": None})
            yield Step(f"there is no rollback to version {version} any more", lambda: self._say(left))
        if owners := routes.owners(version):
            records = {owner_key(version, number): None for number in owners}
            yield Step(f"routes to its {len(owners)} partitions are deleted", lambda: self._write(records))
        own = [gone.parking, *map(gone.changelog, gone.all_tables())]
        if topics := [topic.name for topic in own if self._brokers.has(topic.name)]:
            yield Step(f"topics are deleted, with all rows in them: {', '.join(topics)}", lambda: self._delete(topics))
        if stores := self._stores(gone):
            yield Step(f"local stores are removed: {', '.join(map(str, stores))}", lambda: _remove(stores))
        if self._brokers.positions(gone.group):
            yield Step(f"the group {gone.group} is deleted, with its positions", lambda: self._forget(gone.group))

    def _stores(self, gone: Topology) -> list[Path]:
        """Those on this machine."""
        later = re.compile(rf"{re.escape(gone.group)}-v\d+-")  # the first version's group begins as all others' do
        found = self._settings.data_dir.glob(f"{gone.group}-*")
        return sorted(each for each in found if not later.match(each.name))

    def note(self, verb: str, version: int, by: str, reason: str) -> None:
        """Keeps who has done this, and why, for as long as the service has its topics."""
        self._write(dict([Deed(at=datetime.now(UTC), verb=verb, version=version, by=by, reason=reason).record]))

    def pair(self) -> tuple[int, int]:
        """The versions to compare: the one that answers, and the other. Raises VersionsRefused."""
        active, declared = self.routes().active, self.topology.version
        if active is None:
            raise self._refusal("it has one version", f"`deploy {self.topology.service}` the next one first")
        other = declared if declared != active.version else active.former
        if other is None:
            raise self._refusal(f"version {declared} stands alone", "raise `version` in topology.py, and `deploy`")
        return active.version, other

    def compare(self, one: int, other: int) -> Iterator[Compared]:
        """The rows of each table, as they were at the same positions, below which both have read all.

        Raises VersionsRefused if one stays behind.
        """
        until = self._both(self._positions(one), self._positions(other))
        if self.service.decider is not None:
            commands = self.service.aggregates.source.name
            until = {**until, commands: self._brokers.positions(self.of(one).group).get(commands, {})}
        for version in (one, other):
            self._await(version, {topic: until[topic] for topic in self._sources() if topic in until})
        self._await_following(other, one)
        shared = [table for table in self.topology.tables if self._have(table, one, other)]
        for table in shared:
            found = Compared(table.name)
            fences = {each.name: until.get(each.source.name, {}) for each in table.folded}
            for number in range(self.topology.partitions):
                within = {name: positions.get(number, 0) for name, positions in fences.items()}
                compare_rows(found, number, *(self._rows(table, version, number, within) for version in (one, other)))
            yield found

    def _have(self, table: Table, *versions: int) -> bool:
        return all(self._brokers.has(self.of(version).changelog(table).name) for version in versions)

    def _rows(self, table: Table, version: int, number: int, fences: Mapping[str, int]) -> RowsAt:
        place = Place(self.of(version).changelog(table).name, number)
        start, end = self._brokers.starts(place.topic)[number], self._brokers.settled_ends(place.topic)[number]
        rows = RowsAt(table.name, fences)
        client = client_config(self._brokers.bootstrap)
        for chunk in read(client, Span(place, start, end)) if start < end else ():
            for key, value in zip(chunk.keys, chunk.values, strict=True):
                rows.add(key or b"", value)
        positions = self._positions(version)
        sources = {each.name: each.source.name for each in table.folded}
        if any(positions.get(sources[name], {}).get(number, 0) > fence for name, fence in fences.items()):
            rows.later |= rows.deleted
        return rows

    @property
    def acts(self) -> bool:
        """Whether the service does more than read."""
        return bool(self._acting())

    def _acting(self) -> Mapping[str, bool]:
        """The topics that lead to more than rows; whether from their first record on, if no version has read them."""
        service, found = self.service, dict[str, bool]()
        if service.decider is not None:
            found[service.aggregates.source.name] = True
        found |= dict.fromkeys([each.source.name for each in service.rekeys], True)
        found |= dict.fromkeys([each.source.name for each in service.timers], True)
        late = [(each.source.name, each.from_start) for each in service.policies]
        late += [(each.source.name, each.from_start) for each in service.publications]
        for source, from_start in late:
            found[source] = found.get(source, False) or from_start
        return found

    def _held_back(self, version: int) -> Mapping[str, Positions]:
        """Where the next version stands in what that one alone reads on from, and that it has no turn yet."""
        if not self.acts:
            return {}
        routes, known = self.routes(), self._brokers.positions(self.of(version).group)
        turns = {number: turn.number for number in range(self.topology.partitions) if (turn := routes.turn(number))}
        unread = {topic: anew for topic, anew in self._acting().items() if topic not in self._sources()}
        starts, ends = self._brokers.starts, self._brokers.settled_ends
        return {
            **{topic: starts(topic) if topic in known or anew else ends(topic) for topic, anew in unread.items()},
            self.topology.routes.name: {number: Role(at, acts=False).committed for number, at in turns.items()},
        }

    def _takes_turns(self, version: int, routes: Routes) -> Iterator[Step]:
        left, goes_on = self._without_turn(version, routes), self._goes_on(version, routes)
        if goes_on:
            says = (
                f"version {version} has the turn in {len(goes_on)} partitions, as it goes on from the former positions"
            )
            yield Step(says, lambda: self._say_turns(goes_on))
        if more := [number for number in left if number not in goes_on]:
            takes = f"version {version} takes its turn in {len(more)} partitions, once the other one has given it"
            yield Step(takes, lambda: self._await_turns(version))

    def _roles(self, version: int) -> Mapping[int, Role]:
        """By partition, by the word of its group; in none if the service only reads."""
        committed = self._brokers.positions(self.of(version).group).get(self.topology.routes.name, {})
        numbers = range(self.topology.partitions) if self.acts else ()
        return {number: Role.of(committed.get(number)) for number in numbers}

    def _without_turn(self, version: int, routes: Routes) -> list[int]:
        """The partitions in which it has not taken its turn."""
        return [
            number
            for number, role in self._roles(version).items()
            if (turn := routes.turn(number)) is None or turn.version != version or not role.acts
        ]

    def _goes_on(self, version: int, routes: Routes) -> Mapping[int, Turn]:
        """The turns of another version that `rebuild` has let this one go on from: by their own word, both act."""
        own = self._roles(version)
        turns = {number: turn for number in own if (turn := routes.turn(number)) and turn.version != version}
        others = {each: self._roles(each) for each in {turn.version for turn in turns.values()}}
        return {
            number: turn.model_copy(update={"version": version})
            for number, turn in turns.items()
            if own[number].acts and others[turn.version][number] == own[number]
        }

    def _await_turns(self, version: int) -> None:
        """Raises VersionsRefused."""
        if left := _awaited(lambda: self._without_turn(version, self.routes())):
            fix = "see the workers' logs, then do this again, or `rollback`: it goes on from what it finds"
            raise self._refusal(f"version {version} does not act in partitions {left} yet", fix)

    def _refuse_third(self, active: int) -> None:
        """A version follows one other."""
        others = {each.version for each in self.standing()} - {active, self.topology.version} if self.acts else set()
        if others:
            fix = f"`retire {self.topology.service} {min(others)}`"
            raise self._refusal(f"version {min(others)} still stands beside version {active}", fix)

    def _refuse_unfollowed(self) -> None:
        service, name = self.service, self.topology.service
        if not self.topology.tables:
            raise self._refusal(
                "it has no rows to see beforehand", "leave `version` as it was, and replace its workers"
            )
        if service.decider is not None and service.aggregates.ends:
            fix = f"`rebuild {name}`, with its workers stopped"
            raise self._refusal("its aggregates' rows end, which another version can't follow yet", fix)

    def parked(self, version: int) -> Mapping[str, Sequence[Parked]]:
        """What waits for an operator, by processor."""
        latest = {(number, key): value for number, key, value in read_all(self._brokers, self._parked_of(version))}
        found = defaultdict[str, list[Parked]](list)
        for (_, key), value in latest.items():
            if value is not None and not is_note(key) and not (parked := PARKED_CODEC.decode(value).state).is_page:
                found[parked.processor].append(parked)
        return found

    def _parked_of(self, version: int) -> str:
        return self.of(version).changelog(self.topology.parked).name

    def _refuse_parked(self, version: int, active: int) -> None:
        """What waits for an operator can't be followed, nor given to another version."""
        for each in (version, active) if self.acts else ():
            for processor, parked in self.parked(each).items():
                if processor not in self._views:
                    fix = f"`dead-letters` of {self.of(each).group}: correct, retry or discard what is parked"
                    raise self._refusal(f"version {each} could not handle {_unhandled(processor, parked)}", fix)

    def _lacks(self, version: int) -> Iterator[Step]:
        """What its views can't show."""
        for processor, parked in self.parked(version).items():
            if processor in self._views:
                lacks = f"{processor} of version {version} goes without what it could not read, until it is retried: "
                yield Step(lacks + _unhandled(processor, parked), lambda: None)

    @property
    def _views(self) -> set[str]:
        return {table.name for table in self.topology.tables if not table.is_of_commands}

    def _await_following(self, version: int, active: int) -> None:
        """Returns once the version has followed all that the active one had done by now. Raises VersionsRefused."""
        if self.service.decider is None or self.topology.outcomes is None:
            return
        followed = [self.of(active).changelog(each).name for each in (self.service.aggregates, self.topology.outcomes)]
        until = {topic: self._brokers.settled_ends(topic) for topic in (*followed, self.service.events.name)}
        shadows = {number for number, role in self._roles(version).items() if not role.acts}
        self._await(version, {topic: {n: ends[n] for n in shadows} for topic, ends in until.items()})

    def _refuse_cut_history(self) -> None:
        for topic, starts in self._starts().items():
            if cut := {number: start for number, start in starts.items() if start}:
                number, start = next(iter(cut.items()))
                fix = f"fill it from an archive, `rebuild {self.topology.service} --archive DIR`, then do this again"
                raise self._refusal(f"{topic}/{number} begins at offset {start}: older records were removed", fix)

    def _refuse_unfit(self, version: int, active: int) -> None:
        group = self.of(version).group
        if not self._brokers.members(group):
            raise self._refusal(f"{group} has no workers", f"start workers of version {version}")
        if self.acts and not self._brokers.members(self.of(active).group) and not self._goes_on(version, self.routes()):
            lone = f"{self.of(active).group} has no workers, which alone can give the turn that it has"
            raise self._refusal(lone, f"start workers of version {active}")
        if unowned := _awaited(lambda: set(range(self.topology.partitions)) - self.routes().owners(version).keys()):
            fix = "try again once its workers are ready; the log of one that is not says why"
            raise self._refusal(f"no worker of {group} has said that it owns partitions {sorted(unowned)}", fix)
        self._refuse_parked(version, active)
        self._await(version, self._positions(active))
        self._await_following(version, active)

    def _await(self, version: int, until: Mapping[str, Positions]) -> None:
        """Returns once the version has read all below `until`. Raises VersionsRefused."""
        if behind := _awaited(lambda: self._unread(version, until)):
            group, fix = self.of(version).group, "try again once it has caught up; `versions` shows how far it is"
            raise self._refusal(f"{group} is {behind} records behind", fix)

    def _unread(self, version: int, until: Mapping[str, Positions]) -> int:
        """How many records it has to read up to `until`; markers of transactions are none, nor what it has decided."""
        positions, viewed, count = self._brokers.positions(self.of(version).group), self._viewed(), 0
        roles = positions.get(self.topology.routes.name, {})
        for topic, ends in until.items():
            for number, end in ends.items():
                start = positions.get(topic, {}).get(number, 0)
                if end > start and (topic in viewed or not Role.of(roles.get(number)).acts):
                    count += unread(self._brokers, Place(topic, number), start, end)
        return count

    def _positions(self, version: int) -> Mapping[str, Positions]:
        """In the sources of its views."""
        found = self._brokers.positions(self.of(version).group)
        return {topic: found[topic] for topic in self._sources() if topic in found}

    def _viewed(self) -> list[str]:
        """What it reads for more than to decide."""
        views = [each for table in self.topology.tables for each in table.folded if not each.is_of_commands]
        history = [] if self.topology.history is None else [self.topology.history.name]
        return list(dict.fromkeys([*(each.source.name for each in views), *history]))

    def _sources(self) -> list[str]:
        followed = [] if self.service.decider is None else [self.service.events.name]
        return list(dict.fromkeys([*self._viewed(), *followed]))

    def _starts(self) -> Mapping[str, Positions]:
        return {topic: self._brokers.starts(topic) for topic in self._sources()}

    def _ends(self) -> Mapping[str, Positions]:
        return {topic: self._brokers.settled_ends(topic) for topic in self._sources()}

    @staticmethod
    def _both(*several: Mapping[str, Positions]) -> Mapping[str, Positions]:
        """The farthest."""
        farthest: dict[str, Positions] = {}
        for positions in several:
            for topic, some in positions.items():
                for number, at in some.items():
                    known = farthest.setdefault(topic, {})
                    known[number] = max(known.get(number, 0), at)
        return farthest

    def _provision(self) -> None:
        provision([self.topology], self._settings)

    def _answers(self, active: Active) -> Step:
        before = f", and version {active.former} stays to go back to" if active.former else ""
        return Step(f"version {active.version} answers all requests, at any worker{before}", lambda: self._say(active))

    def _say(self, active: Active) -> None:
        self._write(dict([active.record]))

    def _say_turns(self, turns: Mapping[int, Turn]) -> None:
        for number, turn in turns.items():
            self._write({TURN: turn.model_dump_json().encode()}, number)

    def _write(self, records: Mapping[bytes, bytes | None], partition: int = PARTITION) -> None:
        producer, failed = Producer(producer_config(self._brokers.bootstrap)), list[Any]()
        for key, value in records.items():
            producer.produce(
                self.topology.routes.name,
                value,
                key,
                partition,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        if producer.flush(ANSWER_S) or failed:
            raise BrokersUnavailable(f"{self._brokers.bootstrap}: {failed or 'no answer'}; do this again")

    def _delete(self, topics: Sequence[str]) -> None:
        self._done(lambda admin: admin.delete_topics(list(topics), request_timeout=ANSWER_S))

    def _forget(self, group: str) -> None:
        self._done(lambda admin: admin.delete_consumer_groups([group], request_timeout=ANSWER_S))

    def _done(self, ask: Callable[[AdminClient], Mapping[str, Any]]) -> None:
        admin = AdminClient(client_config(self._brokers.bootstrap) | {"log_level": 0})
        try:
            for answer in ask(admin).values():
                answer.result()
        except KafkaException as failure:
            raise explained(self._brokers.bootstrap, failure) from failure

    def _refusal(self, found: str, fix: str) -> VersionsRefused:
        return VersionsRefused(f"{self.topology.service}: {found}; fix: {fix}")


def _awaited(left: Callable[[], L]) -> L:
    """What is left to be done by workers: nothing, or what they have not done within CATCH_UP_S."""
    deadline = time.monotonic() + CATCH_UP_S
    while (found := left()) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    return found


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _unhandled(processor: str, parked: Sequence[Parked]) -> str:
    first = min(parked, key=lambda each: (each.partition, each.offset))
    more = f", and {len(parked) - 1} more keys" if len(parked) > 1 else ""
    return f"{first.topic}/{first.partition} at {first.offset} in {processor} ({first.code}: {first.reason}){more}"


class RowsAt:
    """The rows of a partition as they were when every source had been read up to its fence, and no further.

    states: by key. later: keys that were written, or may have been deleted, behind a fence; what they were before may
    have been compacted away.
    """

    def __init__(self, table: str, fences: Mapping[str, int]) -> None:
        self.states: dict[bytes, bytes] = {}
        self.later: set[bytes] = set()
        self.deleted: set[bytes] = set()
        self._table = table
        self._fences = fences

    def add(self, key: bytes, value: bytes | None) -> None:
        """The next record of the changelog."""
        if value is None:
            self.states.pop(key, None)
            self.deleted.add(key)
            return
        row = decode(value, type=_Row)
        offsets = {name: offset for name, (_, offset) in row.made_of.items()} or {self._table: row.offset}
        if all(offset < self._fences.get(name, 0) for name, offset in offsets.items()):
            self.states[key] = bytes(row.state)
        else:
            self.later.add(key)


def compare_rows(found: Compared, partition: int, one: RowsAt, other: RowsAt) -> None:
    for key in sorted(one.states.keys() | other.states.keys()):
        states = one.states.get(key), other.states.get(key)
        if states[0] == states[1] or (None not in states and decode(states[0]) == decode(states[1])):  # type: ignore[arg-type]
            found.equal += 1
        elif key in one.later or key in other.later:
            found.moved += 1
        else:
            found.differ.append(Differing(partition, key, *states))


def differing(one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    """The fields of two states that differ, "" for states that are no objects."""
    if not (isinstance(one, dict) or one is None) or not (isinstance(other, dict) or other is None):
        return {"": (one, other)}
    here, there = one or {}, other or {}
    names = dict.fromkeys([*here, *there])
    return {name: (here.get(name), there.get(name)) for name in names if here.get(name) != there.get(name)}
