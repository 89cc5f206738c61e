"""More partitions for the topics of all services of a checkout, which stand still meanwhile.

All records of a key were in one partition, and move together, in their order; those of several partitions are merged by
the brokers' time. First each topic is copied to one beside it, which has the new number of partitions: until all are
complete, nothing else is changed. Then each topic is deleted, made again, and filled from its copy, offset by offset.
At last each group gets its positions, in one transaction with the notes of who passes over what it has handled. A
journal on the brokers says how far all of this is, so whoever was killed does the same again. Most of the first copies
can be made ahead, while workers run: then only what is behind them is copied while they don't.

Rows of aggregates and outcomes of commands are carried over, as nothing may be decided again; views and histories,
which count all offsets, are computed again by the workers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from msgspec import Raw, Struct, json

from shared.domain.errors import OnefoldError
from shared.domain.history_index import id_of_ended
from shared.domain.outcomes import aggregate_of
from shared.kafka.access import ANSWER_S, client_config
from shared.kafka.alone import alone
from shared.kafka.brokers import SETTLE_DEADLINE_S, Brokers, BrokersUnavailable, GroupIsLive, Positions, explained
from shared.kafka.murmur2 import partition_of
from shared.kafka.offsets import Offsets
from shared.kafka.producer import MAX_RECORD_BYTES, producer_config
from shared.kafka.spans import Span, WholeRecord, read_all, read_whole, unread
from shared.kafka.tokens import aiokafka_config
from shared.kafka.verbatim import copy_batches
from shared.operations.provision import (
    TIMESTAMPS,
    TopicSpec,
    TopologyMismatch,
    create_topics,
    declared_topics,
    differences,
    found_topics,
    own_settings,
    provision,
    set_config,
)
from shared.operations.reprocess import HistoryIsCut, begin_where_it_stands, noted_starts
from shared.operations.versions import Versions
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from shared.topology.declaration import Service
from shared.topology.replay import Replayable, refill_of
from shared.topology.topics import DELETIONS_KEPT_S, PARTITIONS_MAX, Topic, Topology

JOURNAL = Topic("repartition.journal.v1", "compact")
_STAGED = ".staged"
_WHILE_COPYING = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    TIMESTAMPS: "CreateTime",  # each record keeps its time
}
_OF_JOURNAL = {"cleanup.policy": "compact", "max.message.bytes": str(MAX_RECORD_BYTES)}
_TOLD_EVERY = 2_000
_ROWS_TOGETHER = 50_000
_PAUSE_S = 0.1

Tell = Callable[[int, int], object]
"""Told now and then how many records are written, and of how many that were left to write as it began."""


class RepartitionRefused(OnefoldError):
    """As things are, records or what was done with them would be lost; nothing was changed.

    Operator action: do what the message says after `fix:`.
    """


class RepartitionBroken(OnefoldError):
    """Somebody else has created or written one of the topics meanwhile. Its records are in a copy beside it.

    Operator action: stop whatever starts workers or provisions, then do the same again.
    """


class Journal(Struct):
    """What is to be done, and how much is.

    former: the number of partitions before. positions: of each group. spans: the offsets of each topic that count, by
    former partition. settings: what each topic has of its own. ids: of the topics as they were. staged: of each copy,
    by partition, how many of its records the service itself has handled, and how many there are. reached: of each copy,
    by former partition, the offset up to which it has all. reached_at: when that was the topic's end, in seconds since
    1970. replacing: whether a topic may be gone.
    """

    partitions: int
    former: int
    positions: dict[str, dict[str, Positions]]
    spans: dict[str, dict[int, tuple[int, int]]]
    settings: dict[str, dict[str, str]]
    ids: dict[str, str]
    staged: dict[str, dict[int, tuple[int, int]]] = {}
    reached: dict[str, Positions] = {}
    reached_at: dict[str, float] = {}
    replaced: list[str] = []
    replacing: bool = False

    def left(self) -> int:
        """How many records are still to be read, for either copy."""
        counts = [counts for name, counts in self.staged.items() if name not in self.replaced]
        return 2 * sum(map(self.left_of, self.spans)) + sum(count for each in counts for _, count in each.values())

    def left_of(self, name: str) -> int:
        """How many records of the topic are not copied beside it yet."""
        return sum(self.ends(name).values()) - sum(self.begins(name).values())

    def starts(self, name: str) -> Positions:
        return {number: start for number, (start, _) in self.spans[name].items()}

    def begins(self, name: str) -> Positions:
        """From where on it is still to be copied beside itself."""
        return self.starts(name) | self.reached.get(name, {})

    def ends(self, name: str) -> Positions:
        return {number: end for number, (_, end) in self.spans[name].items()}

    def is_staged(self, name: str) -> bool:
        return name in self.staged and self.begins(name) == self.ends(name)

    def is_of(self, other: Journal) -> bool:
        """Whether what has been copied is what would be copied now."""
        return self._found == other._found

    @property
    def _found(self) -> tuple[object, ...]:
        return self.positions, self.spans, self.settings, self.ids

    def begins_as(self, other: Journal, name: str) -> bool:
        """Whether the topic begins with what `other` has copied of it, and still has all deletions behind that."""
        may_lack = "compact" in self.settings[name]["cleanup.policy"]
        if may_lack and time.time() > other.reached_at.get(name, 0) + DELETIONS_KEPT_S / 2:
            return False
        as_before = [
            (each.ids[name], each.settings[name], each.starts(name)) for each in (self, other) if name in each.spans
        ]
        return name in other.staged and as_before[0] == as_before[1]


class Carried(NamedTuple):
    """How a topic's records are carried over.

    id_of: the aggregate id in a record's key; None for a record that is left out. rows_of: the topic whose offsets its
    rows have, if they have any. ended: the topic that tells which rows have been deleted. everywhere: whether each
    partition has all records.
    """

    id_of: Callable[[bytes], bytes | None] = bytes
    rows_of: str | None = None
    ended: str | None = None
    everywhere: bool = False


@dataclass(frozen=True)
class Member:
    """A service with its new number of partitions, and what its workers run."""

    service: Service
    topology: Topology
    readers: Sequence[Replayable] = field(repr=False)

    @property
    def timers(self) -> set[str]:
        return {each.source.name for each in self.service.timers}

    def carried(self) -> Iterator[tuple[str, Carried]]:
        """What is copied, rows last. All else is computed again, or of no use any more."""
        topology = self.topology
        everywhere = {topic for rekey in self.service.rekeys for topic in rekey.everywhere}
        for topic in (*topology.topics, topology.dead_letters):
            yield topic.name, Carried(everywhere=topic in everywhere)
        for table in (each for each in topology.tables if each.is_of_commands):
            commands, index = table.source.name, topology.history_index
            chapters = None if index is None or not table.ends else topology.changelog(index).name
            if chapters is not None:
                yield chapters, Carried(id_of_ended, commands)
            yield topology.changelog(table).name, Carried(rows_of=commands, ended=chapters)
            if topology.outcomes is not None:
                yield topology.changelog(topology.outcomes).name, Carried(aggregate_of, commands)


class Repartition:
    """Blocking. Every method raises BrokersUnavailable or ProvisionError."""

    def __init__(self, services: Iterable[tuple[Service, Sequence[Replayable]]], settings: Settings, partitions: int):
        """services: all of the checkout, with what their workers run."""
        if partitions > PARTITIONS_MAX:
            raise RepartitionRefused(f"{partitions} partitions are too many; fix: at most {PARTITIONS_MAX}")
        self.members = [
            Member(service, replace(service.topology, partitions=partitions), readers) for service, readers in services
        ]
        self._partitions = partitions
        self._settings = settings
        self._brokers = Brokers(settings.bootstrap)
        self._admin = AdminClient(client_config(settings.bootstrap) | {"log_level": 0})
        self._carried = {name: how for each in self.members for name, how in each.carried()}
        self._specs = declared_topics([each.topology for each in self.members], settings)

    def plan(self, *, ahead: bool = False) -> Journal:
        """What is to be done as things are now, or what is left of it; changes nothing. ahead: while workers run.

        Raises RepartitionRefused or HistoryIsCut.
        """
        begun = self._journal()
        if begun is not None and begun.replacing:
            if begun.partitions != self._partitions:
                fix = f"`repartition --partitions {begun.partitions}` first"
                raise RepartitionRefused(f"one to {begun.partitions} partitions was begun; fix: {fix}")
            return begun
        fresh = self._fresh(ahead=ahead)
        if begun is None or begun.partitions != self._partitions:
            return fresh
        as_before = begun.is_of(fresh)
        for name in fresh.spans:
            if (as_before and begun.is_staged(name)) or (self._may_go_on(name) and fresh.begins_as(begun, name)):
                fresh.staged[name], fresh.reached[name] = begun.staged[name], begun.reached[name]
                fresh.reached_at[name] = begun.reached_at[name]
        return fresh

    def copy_ahead(self, tell: Tell) -> int:
        """Make copies of what there is, while workers run, and say of how many topics. Raises as `carry_out` does."""
        self._topic(JOURNAL.name, 1, _OF_JOURNAL, keep=True)
        with alone(self._settings.bootstrap, "repartition", JOURNAL.name) as self._check_alone:
            journal = self.plan(ahead=True)
            if journal.replacing:
                raise RepartitionRefused("topics are being made again; fix: do this again without --ahead")
            self._save(journal)
            names = [name for name in self._copied(journal) if self._may_go_on(name)]
            progress = _Progress(tell, sum(map(journal.left_of, names)))
            for name in names:
                self._stage(name, journal, progress)
            return len(names)

    def carry_out(self, journal: Journal, tell: Tell) -> None:
        """Raises GroupIsLive, NotAlone, RepartitionRefused or RepartitionBroken; then the same can be done again."""
        self.refuse_members()
        self._topic(JOURNAL.name, 1, _OF_JOURNAL, keep=True)
        with alone(self._settings.bootstrap, "repartition", JOURNAL.name) as self._check_alone:
            if self.plan() != journal:
                raise RepartitionRefused("it has gone on since this began; fix: do this again")
            self._carry_out(journal, tell)

    def _carry_out(self, journal: Journal, tell: Tell) -> None:
        self._save(journal)
        progress = _Progress(tell, journal.left())
        for name in self._copied(journal):
            if not journal.is_staged(name):
                self._stage(name, journal, progress)
                progress.left(journal.left())
        if not journal.replacing:
            self.refuse_members()
            if not journal.is_of(self._fresh()):
                raise GroupIsLive("a worker came and went meanwhile: stop whatever starts workers, then do this again")
            journal.replacing = True
            self._save(journal)
        for each in self._last:
            if self._brokers.has(each) and self._brokers.partitions(each) == journal.former:
                self._delete(each)
        for name in self._copied(journal):
            if name not in journal.replaced:
                self._replace(name, journal, progress)
            self._delete(name + _STAGED)
        self._begin_anew(journal)
        for member in self.members:
            self._go_on(member, journal)
        self._delete(JOURNAL.name)

    @property
    def _last(self) -> set[str]:
        """Topics without which no worker starts: gone before any other is, and there again after all others."""
        return {each.topology.changelog(each.topology.parked).name for each in self.members}

    # What is found.

    def _may_go_on(self, name: str) -> bool:
        """Whether its copy can be added to: nothing that was passed on may come behind what waits for a timer, and no
        deletion behind rows, as it may be older than they are."""
        return self._carried[name].ended is None and not any(name in each.timers for each in self.members)

    def _copied(self, journal: Journal) -> list[str]:
        return [name for name in self._carried if name in journal.spans]

    def _journal(self) -> Journal | None:
        if not self._brokers.has(JOURNAL.name):
            return None
        found = [value for _, _, value in read_all(self._brokers, JOURNAL.name)]
        return json.decode(found[-1] or b"", type=Journal) if found else None

    def _fresh(self, *, ahead: bool = False) -> Journal:
        self._found_at = time.time()
        found = found_topics(self._specs, self._settings.bootstrap)
        former = self._refuse_number(found)
        as_now = {name: replace(spec, partitions=former) for name, spec in self._specs.items() if name in found}
        if wrong := differences(as_now, found):
            raise TopologyMismatch(wrong)
        spans = {name: self._span(name) for name in found}
        positions = {}
        for each in self.members:
            self._refuse_strangers(each)
            self._refuse_versions(each)
            positions[each.topology.group] = self._brokers.positions(each.topology.group)
            if not ahead:
                self._refuse_behind(each, positions[each.topology.group], spans)
                self._refuse_parked(each)
            self._leave_out_skipped(each, spans)
        settings = own_settings(found, self._settings.bootstrap)
        return Journal(
            self._partitions,
            former,
            positions,
            {name: spans[name] for name in self._carried if name in spans},
            {name: settings[name] | dict(self._specs[name].config) for name in found},
            Offsets(self._settings.bootstrap).topic_ids(found),
        )

    def _span(self, name: str) -> dict[int, tuple[int, int]]:
        starts, ends = self._brokers.starts(name), self._brokers.settled_ends(name)
        return {number: (starts[number], end) for number, end in sorted(ends.items())}

    def _refuse_number(self, found: Mapping[str, TopicSpec]) -> int:
        numbers = {spec.partitions for spec in found.values()}
        if not numbers:
            fix = "declare that number in each topology.py, and `provision`"
            raise RepartitionRefused(f"none of the topics is there; fix: {fix}")
        if len(numbers) > 1:
            raise RepartitionRefused(f"topics have {sorted(numbers)} partitions; fix: `topics` shows which, and why")
        (former,) = numbers
        if self._partitions == former:
            raise RepartitionRefused(f"all topics have {former} partitions; fix: nothing is to be done")
        if self._partitions < former:
            raise RepartitionRefused(f"{self._partitions} is fewer than {former}; fix: name a number above that")
        return former

    def _refuse_strangers(self, member: Member) -> None:
        if others := [topic.name for topic in member.service.handled if topic.name not in self._specs]:
            raise RepartitionRefused(
                f"{member.topology.service} reads {others[0]}, which no service of this checkout declares, and needs "
                f"as many partitions as it has; fix: do it in a checkout with all services that read each other"
            )

    def _refuse_versions(self, member: Member) -> None:
        versions, declared = Versions(member.service, self._settings), member.topology.version
        standing, active = [each.version for each in versions.standing()], versions.routes().active
        if standing and max(standing) > declared:
            fix = f"check out the release that declares version {max(standing)}"
            raise RepartitionRefused(f"{member.topology.service}: version {max(standing)} has begun; fix: {fix}")
        if active is not None and (active.version, active.former) != (declared, None):
            fix = f"`switch` and `retire {member.topology.service}`, until one is left"
            raise RepartitionRefused(f"{member.topology.service}: several versions stand side by side; fix: {fix}")

    def _refuse_behind(self, member: Member, positions: Mapping[str, Positions], spans: _Spans) -> None:
        read = dict.fromkeys([*(each.source.name for each in member.readers), member.topology.parking.name])
        for topic in read.keys() - member.timers:
            left = sum(
                unread(self._brokers, Place(topic, number), max(start, positions.get(topic, {}).get(number, 0)), end)
                for number, (start, end) in spans.get(topic, {}).items()
            )
            if left > 0:
                fix = "start its workers until `status` says that nothing waits, and stop them again"
                raise RepartitionRefused(
                    f"{member.topology.service} has {left} records of {topic} still to handle; fix: {fix}"
                )

    def _refuse_parked(self, member: Member) -> None:
        versions = Versions(member.service, self._settings)
        if self._brokers.has(member.topology.changelog(member.topology.parked).name):
            for processor, parked in versions.parked(member.topology.version).items():
                service, first = member.topology.service, parked[0]
                fix = f"`dead-letters list {service}`, then retry, correct or discard them, while its workers run"
                raise RepartitionRefused(
                    f"{service} has {len(parked)} keys parked in {processor}, the first by {first.topic}/"
                    f"{first.partition} at {first.offset}; fix: {fix}"
                )

    def _leave_out_skipped(self, member: Member, spans: _Spans) -> None:
        """What a reprocessing has made again counts no more. Raises HistoryIsCut."""
        replay = refill_of(member.readers)
        noted = noted_starts(self._brokers, member.topology, replay) if member.topology.parking.name in spans else {}
        viewed = {table.source.name for table in replay.tables if table != member.topology.history_index}
        for source in (topic.name for topic in replay.sources):
            for number, (start, end) in spans.get(source, {}).items():
                counts = noted.get(Place(source, number), 0)
                if start > counts and source in viewed:
                    raise HistoryIsCut(
                        f"{source}/{number} begins at offset {start}, and views of {member.topology.service} are "
                        f"computed again from it; fix: there is none, as they would lack what was removed: "
                        f"leave the number as it is"
                    )
                spans[source][number] = (max(start, counts), end)

    def live(self) -> Mapping[str, Sequence[str]]:
        """The members of each group that has any."""
        found = {}
        for each in self.members:
            for version in range(1, each.topology.version + 2):
                group = replace(each.topology, version=version).group
                if names := self._brokers.members(group):
                    found[group] = names
        return found

    def refuse_members(self) -> None:
        """Raises GroupIsLive."""
        for group, names in self.live().items():
            raise GroupIsLive(
                f"{', '.join(names)} in the group {group}: stop all workers of all services, then do this again. "
                "A killed worker counts until its session times out"
            )

    # What is done.

    def _stage(self, name: str, journal: Journal, progress: _Progress) -> None:
        """Copy a topic beside itself, first what its timer has passed on, then what waits."""
        how, copy = self._carried[name], name + _STAGED
        writer = _Writer(self._settings.bootstrap, copy, self._partitions)
        staged = {number: count for number, (_, count) in journal.staged.get(name, {}).items()}
        if staged and self._brokers.has(copy) and not self._others(copy, staged):
            writer.counts.update(staged)
        else:
            journal.reached.pop(name, None)
            self._topic(copy, self._partitions, journal.settings[name] | _WHILE_COPYING)
        if how.ended is not None:  # deletions come first: of a key that has begun again, there is a row behind
            for _, told in self._merged(how.ended, journal.starts(how.ended), journal.ends(how.ended)):
                if told.key is not None and (id_ := id_of_ended(told.key)) is not None:
                    writer.write(_partition_of(id_, self._partitions), told._replace(key=id_, value=None))
        timers = next((each for each in self.members if name in each.timers), None)
        begins, ends = journal.begins(name), journal.ends(name)
        waits, handled = ends, Counter[int]()
        if timers is not None:
            rung = journal.positions[timers.topology.group].get(name, {})
            waits = {number: min(max(rung.get(number, 0), begins[number]), end) for number, end in ends.items()}
        for first, last in ((begins, waits), (waits, ends)):
            records = progress.counted(self._merged(name, first, last))
            for number, record in records if how.rows_of is None else _latest(records):
                for to, each in self._placed(how, journal, number, record):
                    writer.write(to, each)
            handled = Counter(writer.counts) if last is waits else handled
        writer.flush()
        self._refuse_others(copy, writer.counts)
        journal.staged[name] = {each: (handled[each], writer.counts[each]) for each in range(self._partitions)}
        journal.reached[name], journal.reached_at[name] = ends, self._found_at
        self._save(journal)

    def _merged(self, name: str, begins: Positions, ends: Positions) -> Iterator[_Found]:
        """Its records with their former partition, by time, each partition in order."""
        spans = [Span(Place(name, number), begins[number], end) for number, end in ends.items()]
        spans = spans[:1] if self._carried[name].everywhere else spans
        records = [_timed(client_config(self._settings.bootstrap), span) for span in spans if span.start < span.end]
        for _, number, record in merge(*records, key=itemgetter(0)):
            yield number, record

    def _placed(
        self, how: Carried, journal: Journal, number: int, record: WholeRecord
    ) -> Iterator[tuple[int, WholeRecord]]:
        if how.everywhere or record.key is None:
            for each in range(self._partitions) if how.everywhere else [number]:
                yield each, record
        elif (id_ := how.id_of(record.key)) is not None:
            to = _partition_of(id_, self._partitions)
            if how.rows_of is not None and record.value is not None:
                at = journal.staged[how.rows_of][to][0] - 1  # all before it is decided
                record = record._replace(value=_with_offset(record.value, at))
            yield to, record

    def _replace(self, name: str, journal: Journal, progress: _Progress) -> None:
        is_former = self._brokers.has(name) and self._brokers.partitions(name) == journal.former
        if is_former and self._brokers.settled_ends(name) != (ends := journal.ends(name)):
            raise RepartitionBroken(
                f"{name} was written after it was copied, and would lose that; fix: `export` it, see what is there "
                f"behind {ends}, and do what wrote it again after this is done: delete {name}, then do this again"
            )
        self._topic(name, self._partitions, journal.settings[name] | _WHILE_COPYING)
        client = aiokafka_config(self._settings.bootstrap, self._settings.principal)
        ends = {number: count for number, (_, count) in journal.staged[name].items()}
        copy_batches(client, name + _STAGED, name, ends, progress.more)
        self._refuse_others(name, ends)
        for setting in _WHILE_COPYING:
            try:
                set_config(self._admin, name, setting, journal.settings[name][setting])
            except KafkaException as failure:
                raise explained(self._settings.bootstrap, failure) from failure
        journal.replaced.append(name)
        self._save(journal)

    def _begin_anew(self, journal: Journal) -> None:
        """What nothing is copied to."""
        empty = [name for name in journal.settings if name not in journal.replaced]
        for name in sorted(empty, key=lambda name: name in self._last):
            if not self._brokers.has(name) or self._brokers.partitions(name) == journal.former:
                self._topic(name, self._partitions, journal.settings[name])
        provision([each.topology for each in self.members], self._settings)

    def _go_on(self, member: Member, journal: Journal) -> None:
        """Give the group its positions: where it stood, but in what views are computed of, at the start."""
        topology, known = member.topology, journal.positions[member.topology.group]
        given = self._brokers.positions(topology.group)
        if not known or any(number >= journal.former for some in given.values() for number in some):
            return
        replay, stands = refill_of(member.readers), dict[Place, int]()
        for topic in {each.source.name for each in member.readers} & known.keys() & journal.staged.keys():
            for number, (handled, all_) in journal.staged[topic].items():
                stands[Place(topic, number)] = handled if topic in member.timers else all_
        again = {topic.name for topic in replay.sources}
        positions: dict[str, Positions] = {}
        for place, at in stands.items():
            positions.setdefault(place.topic, {})[place.number] = 0 if place.topic in again else at
        notes = list(begin_where_it_stands(topology, replay, stands, {}, copying=False))
        self.refuse_members()
        self._brokers.commit_with(topology.group, positions, notes)

    # Topics.

    def _topic(self, name: str, partitions: int, settings: Mapping[str, str], *, keep: bool = False) -> None:
        """An empty topic, in place of one that is there. keep: or that one, if there is one."""
        if keep and self._brokers.has(name):
            return
        self._delete(name)
        spec = TopicSpec(partitions, self._settings.replication, settings)
        if not create_topics({name: spec}, self._settings.bootstrap):
            raise RepartitionBroken(f"{name} was created by somebody else; fix: stop whatever provisions, then again")
        self._await(lambda: self._brokers.has(name), f"{name} was created, and is not there")

    def _delete(self, name: str) -> None:
        if not self._brokers.has(name):
            return
        self._check_alone()
        try:
            self._admin.delete_topics([name], request_timeout=ANSWER_S)[name].result()
        except KafkaException as failure:
            raise explained(self._settings.bootstrap, failure) from failure
        self._await(lambda: not self._brokers.has(name), f"{name} was deleted, and is still there")

    def _refuse_others(self, name: str, written: Mapping[int, int]) -> None:
        """Raises RepartitionBroken unless the topic has as many records as were written, by partition."""
        if others := self._others(name, written):
            fix = "stop whoever does, then do this again"
            raise RepartitionBroken(f"{others}: somebody else has written there; fix: {fix}")

    def _others(self, name: str, written: Mapping[int, int]) -> str | None:
        places = [Place(name, number) for number in range(self._partitions)]
        for place, found in self._brokers.bounds(places).items():
            if (found.start, found.end) != (0, written[place.number]):
                return f"{place} has offsets {found.start} to {found.end} of {written[place.number]}"
        return None

    def _await(self, is_so: Callable[[], bool], else_: str) -> None:
        deadline = time.monotonic() + SETTLE_DEADLINE_S
        while not is_so():
            if time.monotonic() > deadline:
                raise BrokersUnavailable(f"{self._settings.bootstrap}: {else_}; fix: do this again")
            time.sleep(_PAUSE_S)

    def _save(self, journal: Journal) -> None:
        self._check_alone()
        self._pages.write(0, WholeRecord(0, int(time.time() * 1000), b"journal", json.encode(journal), []))
        self._pages.flush()

    @cached_property
    def _pages(self) -> _Writer:
        """Of the journal: a new producer takes half a second for its first record."""
        return _Writer(self._settings.bootstrap, JOURNAL.name, 1)


_Spans = Mapping[str, dict[int, tuple[int, int]]]
_Found = tuple[int, WholeRecord]


class _Progress:
    def __init__(self, tell: Tell, total: int) -> None:
        self._tell, self._total, self._done, self._told = tell, total, 0, 0

    def left(self, records: int) -> None:
        self._total = self._done + records

    def counted(self, records: Iterable[_Found]) -> Iterator[_Found]:
        for each in records:
            yield each
            self.more(1)

    def more(self, records: int) -> None:
        self._done += records
        if self._done >= self._told + _TOLD_EVERY:
            self._told = self._done
            self._tell(self._done, self._total)


class _Writer:
    """Writes records to given partitions of an empty topic, each once and in order, with their times."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.counts = Counter[int]()
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._errors: list[KafkaError] = []
        config = producer_config(bootstrap, linger_ms=500, queue_buffering_max_kbytes=64 << 10)
        # a report of each record would take longer than all else about it
        self._producer = Producer(config | {"delivery.report.only.error": True, "on_delivery": self._told})

    def write(self, number: int, record: WholeRecord) -> None:
        produce, headers = self._producer.produce, record.headers
        more = {"timestamp": record.timestamp, "headers": headers} if headers else {"timestamp": record.timestamp}
        while True:
            try:
                produce(self._topic, record.value, record.key, number, **more)
                break
            except BufferError:
                self._producer.poll(_PAUSE_S)
        self.counts[number] += 1

    def _told(self, error: KafkaError, _: object) -> None:
        self._errors.append(error)

    def flush(self) -> None:
        left = self._producer.flush(SETTLE_DEADLINE_S)
        if self._errors:
            raise explained(self._bootstrap, KafkaException(self._errors[0]))
        if left:
            raise BrokersUnavailable(f"{self._bootstrap}: {left} records of {self._topic} are not acknowledged")


def _timed(client: Mapping[str, Any], span: Span) -> Iterator[tuple[int, int, WholeRecord]]:
    for record in read_whole(client, span):
        yield record.timestamp, span.place.number, record


def _latest(records: Iterator[_Found]) -> Iterator[_Found]:
    """Of each key the last one of so many records, as those before it are a table's past."""
    while some := {record.key: (number, record) for number, record in islice(records, _ROWS_TOGETHER)}:
        yield from some.values()


_partition_of = lru_cache(500_000)(partition_of)


def _with_offset(row: bytes, offset: int) -> bytes:
    """The row as if the record there had written it."""
    fields = json.decode(row, type=dict[str, Raw])
    return json.encode(fields | {"offset": Raw(b"%d" % offset)})
