"""The table partitions held here: restored from changelogs, written by the engine's commits, readable by anyone."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

import structlog

from shared.domain.errors import NotReady, RowUnreadable
from shared.domain.row import Codec, Row
from shared.kafka.reader import ReadRecord
from shared.runtime.clock import brokers_clock
from shared.runtime.positions import Place
from shared.tables.rows import Rows
from shared.tables.store import RowStore, StoreFailed
from shared.topology.topics import DELETIONS_KEPT_S, KEPT_FOR_EVER, Table, Topology

log = structlog.get_logger(__name__)

_MARGIN_S = 3_600.0  # for the restore that follows, and for the clock of a worker that no broker has told the time yet
_WORTH_A_WAIT = 100  # changelog records; to read fewer takes less time than to join a group again
TELL_S = 5.0  # between two lines about a long restore


@dataclass(slots=True)
class Replica:
    """One partition of a table. It is restored once `position` has reached `target`, and of an owner also `end`.

    Offsets are the changelog's: position is the next to apply, target the end when the partition was taken over,
    end the last end seen, end_known_at when the brokers last gave it, by `elapsed_s`, log_start its start at the
    take-over. applied_until: timestamp of the last record applied, in seconds since the epoch. whole_until: likewise,
    up to when the store lacked no deletion when it was opened.
    kept: whether it began with rows that the local store had. failure: set by a read that found the store broken.
    """

    changelog: Place
    store: RowStore
    active: bool
    position: int
    target: int
    end: int
    end_known_at: float = -inf
    applied_until: float = 0.0
    whole_until: float = 0.0
    log_start: int = 0
    restored: bool = False
    began: float = field(default_factory=time.monotonic)
    start: int = 0
    kept: bool = False
    failure: StoreFailed | None = None

    @property
    def ours(self) -> bool:
        """Whether only this worker writes its changelog, so that there is nothing to read from it."""
        return self.active and self.restored

    @property
    def to_restore(self) -> int:
        """How many changelog records, markers included, are left until it is restored."""
        return 0 if self.restored else max(0, self.target - self.position)

    @property
    def restored_per_s(self) -> float | None:
        """Changelog records per second since the restore began; None when it is over."""
        return None if self.restored else (self.position - self.start) / max(time.monotonic() - self.began, 0.001)

    @property
    def lag(self) -> int:
        """How many changelog records, markers included, this replica is known to be behind."""
        return 0 if self.ours else max(0, self.end - self.position)

    def apply(self, records: Sequence[ReadRecord]) -> None:
        rows = {record.key: record.value for record in records if record.key is not None}  # changelogs are all keyed
        self.applied_until = records[-1].timestamp / 1000
        followed_until = max(self.applied_until, self.whole_until)  # in a restore from the start, records are old
        self.store.apply(self.changelog.number, rows, records[-1].offset, followed_until)
        self.position = records[-1].offset + 1

    def learn_end(self, end: int, asked_at: float) -> None:
        """asked_at: by `elapsed_s`, when the brokers were asked for it."""
        self.end = max(self.end, end)
        self.end_known_at = asked_at

    def advance(self, position: int, end: int) -> bool:
        """Note the reader's position and the changelog's end. True when this completes the restore."""
        self.position = max(self.position, position)
        self.end = max(self.end, end)
        # a broker that leads no more may have told a target too low; nobody else writes what is ours
        if self.restored or self.position < (max(self.target, self.end) if self.active else self.target):
            return False
        self.restored = True
        took_s = round(time.monotonic() - self.began, 2)
        log.info("restored", changelog=self.changelog, records=self.target - self.start, took_s=took_s)
        return True


def time_left_s(records: int, per_s: float | None) -> float | None:
    """None when that can't be known: nothing was restored yet."""
    return round(records / per_s, 1) if per_s else None


class Replicas:
    """Written on the worker's loop and by its commits; rows may be read from any thread."""

    def __init__(self, topology: Topology, stores: Mapping[str, RowStore], codecs: Mapping[str, Codec[Any]]) -> None:
        """stores and codecs: by the table's name."""
        self.held: dict[Place, Replica] = {}
        self._topology = topology
        self._changelogs = {table.name: topology.changelog(table).name for table in topology.all_tables()}
        self._tables = {self._changelogs[table.name]: table for table in topology.all_tables()}
        self._stores = stores
        self._codecs = codecs
        self._told = (0.0, 0)  # when a line last told of the restore, and what was left then

    def changelog(self, table: Table) -> str:
        return self._changelogs[table.name]

    def of(self, table: Table, partition: int) -> Replica | None:
        return self.held.get(Place(self.changelog(table), partition))

    def broken(self, failure: StoreFailed) -> Replica | None:
        """The replica whose store failed, if it is still held."""
        failed = (failure.store, failure.partition)
        return next((each for each in self.held.values() if (each.store, each.changelog.number) == failed), None)

    @property
    def failures(self) -> Iterator[StoreFailed]:
        """Failures that reads met in the replicas held now, for the engine to heal."""
        return (replica.failure for replica in self.held.values() if replica.failure is not None)

    @property
    def restoring(self) -> bool:
        return any(not replica.restored for replica in self.held.values())

    @property
    def to_restore(self) -> int:
        """How many changelog records are left until all owned partitions are restored."""
        return sum(replica.to_restore for replica in self.held.values() if replica.active)

    def tell_of_restore(self) -> None:
        """Log how far it is, and how fast it was since the last time, if that was long ago."""
        now, left = time.monotonic(), self.to_restore
        before_s, before = self._told
        if left and now - before_s >= TELL_S:
            per_s = (before - left) / (now - before_s)
            self._told = now, left
            log.info("restoring", to_restore=left, per_s=round(per_s, 1), left_s=time_left_s(left, per_s))

    def warm(self, few: int) -> set[int]:
        """The partitions whose rows are all here but for so few changelog records, if they are worth a wait.

        Called from any thread.
        """
        copies = defaultdict[int, list[Replica]](list)
        for place, replica in list(self.held.items()):
            copies[place.number].append(replica)
        return {
            number
            for number, held in copies.items()
            if len(held) == len(self._tables)
            and all(each.restored for each in held)
            and sum(each.lag for each in held) <= few
            and sum(each.end - each.log_start for each in held) >= _WORTH_A_WAIT
        }

    def serves_all(self, assigned: Iterable[Place]) -> bool:
        """Whether all table partitions among these are held here, owned and restored."""
        held = [self.held.get(place) for place in assigned if self.is_changelog(place)]
        return all(replica is not None and replica.ours for replica in held)

    # Reading rows. The partition must be held here.

    def codec(self, table: Table) -> Codec[Any]:
        return self._codecs[table.name]

    def read(self, table: Table, partition: int, key: bytes) -> Row[Any] | None:
        """The committed row of `key`. Raises RowUnreadable."""
        with self._reading(table, partition) as store:
            value = store.get(partition, key)
        try:
            return None if value is None else self._codecs[table.name].decode(value)
        except ValueError as error:
            raise RowUnreadable(self.changelog(table), partition, key, error) from None

    def keys(self, table: Table, partition: int, after: bytes = b"") -> Iterator[bytes]:
        """The keys of committed rows in order, starting behind `after`."""
        with self._reading(table, partition) as store:
            yield from (key for key, _ in store.scan(partition, after))

    def keys_by(
        self, table: Table, partition: int, index: str, start: bytes = b"", descending: bool = False
    ) -> Iterator[bytes]:
        """Entries of an index in order, starting behind `start`."""
        with self._reading(table, partition) as store:
            yield from store.keys_by(partition, index, start, descending)

    def has_entry(self, table: Table, partition: int, entry: bytes) -> bool:
        with self._reading(table, partition) as store:
            return store.has_entry(partition, entry)

    @contextmanager
    def _reading(self, table: Table, partition: int) -> Iterator[RowStore]:
        replica = self.of(table, partition)  # looked up once: another replica may take its place during the read
        if replica is None:
            raise NotReady("the partition is moving to another worker")
        try:
            yield replica.store
        except StoreFailed as failure:
            replica.failure = failure
            raise NotReady("the partition is being restored from its changelog") from failure

    def rows(self, table: Table, partition: int, pending: Mapping[bytes, Row[Any] | None], *, careful: bool) -> Rows:
        """Rows for a new batch. pending: the changes that are being committed."""
        partitions = self._topology.partitions if table.keyed_by_id else None
        store, codec = self._stores[table.name], self._codecs[table.name]
        return Rows(self.changelog(table), store, partition, partitions, codec, pending, careful=careful)

    # Which partitions are held, by the group's assignment.

    def is_changelog(self, place: Place) -> bool:
        return place.topic in self._tables

    def begun(self, handled: Collection[Place]) -> set[Place]:
        """The changelogs that may have rows of ours. handled: where the group has handled records of its sources."""
        by_source = {
            Place(name, place.number)
            for name, table in self._tables.items()
            for place in handled
            if place.topic in [each.source.name for each in table.joins or (table,)]
        }
        return by_source | {Place(self.changelog(self._topology.parked), place.number) for place in handled}

    def pass_written(self, offsets: Mapping[Place, int]) -> dict[Place, int]:
        """The ends of these changelogs behind a record of ours, which was aborted, and its marker.

        A replica that was still ours right before needs not read them: nobody else has written.
        """
        ends = {place: offset + 2 for place, offset in offsets.items()}
        for place, end in ends.items():
            replica = self.held.get(place)
            if replica is not None and replica.ours and replica.position == end - 2:
                replica.position = end
        return ends

    def hold(
        self,
        active: Collection[Place],
        standby: Collection[Place],
        starts: Mapping[Place, int],
        ends: Mapping[Place, int],
        topic_ids: Mapping[str, str],
        written: Collection[Place] = (),
    ) -> None:
        """Hold exactly these from now on. starts, ends and topic_ids: of their changelogs, now. written: those that
        end behind a record of ours: see `pass_written`."""
        held = [*active, *standby]
        self.drop(self.held.keys() - set(held))
        for place in held:
            others_end = ends[place] - (2 if place in written else 0)
            topic_id = topic_ids[place.topic]
            self.held[place] = self._open(place, place in active, starts[place], ends[place], others_end, topic_id)
        self._told = time.monotonic(), self.to_restore

    def _open(self, place: Place, active: bool, start: int, end: int, others_end: int, topic_id: str) -> Replica:
        """others_end: of what others have written."""
        table = self._tables[place.topic]
        store = self._stores[table.name]
        position = store.open(place.number, topic_id) + 1
        held = self.held.get(place)
        if position and held is None and self._may_lack_deletions(table, place.number, others_end - position):
            store.wipe(place.number)
            position = store.open(place.number, topic_id) + 1
        if position and held is not None and held.ours and held.position == end:
            position = end  # still owned, and nobody else has written
        # equal to the start, too: all the store's rows come from records that are gone
        if position > end or 0 < position <= start:
            tell = log.warning if table.stored_ms == KEPT_FOR_EVER else log.info  # retention removes rows of the latter
            tell(
                "the local store does not match its changelog and is wiped",
                changelog=place,
                had=position,
                start=start,
                end=end,
            )
            store.wipe(place.number)
            position = store.open(place.number, topic_id) + 1
        kept = position > 0 and (held is None or held.kept)
        whole_until = store.followed_until(place.number) if position else brokers_clock.now()
        position = max(position, start)
        return Replica(
            place,
            store,
            active,
            position,
            end,
            end,
            whole_until=whole_until,
            log_start=start,
            restored=position >= end,
            start=position,
            kept=kept,
        )

    def _may_lack_deletions(self, table: Table, partition: int, behind: int) -> bool:
        """Whether brokers may have dropped tombstones that its store lacks, which is so many records behind."""
        if table == self._topology.parked:
            return True  # it is small
        if not table.ends or behind <= 1:  # the marker of what it wrote last
            return False
        away_s = brokers_clock.now() - self._stores[table.name].followed_until(partition)
        return not -_MARGIN_S < away_s < DELETIONS_KEPT_S - _MARGIN_S

    def drop(self, changelogs: Iterable[Place]) -> None:
        """Stop holding these, if they are held; their local rows stay."""
        for place in self.held.keys() & set(changelogs):
            self.held.pop(place).store.close(place.number)

    def wipe(self, replica: Replica) -> None:
        """Stop holding it and delete its local rows; when held again, it is restored from its changelog."""
        replica.store.wipe(replica.changelog.number)
        del self.held[replica.changelog]
