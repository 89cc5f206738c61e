"""How a worker finds a list's rows in the partitions that it holds: by which of the table's indexes.

Places come in the list's order whatever they are found by: a cursor means the same to all workers of all releases. No
statistics are kept. Which index has the fewest entries is seen by looking at some of each, from the cursor on; and one
that is not in the list's order is read instead once that is no more than what was looked at before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain, islice, takewhile
from typing import NamedTuple, TypeVar

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from shared.domain.errors import NotReady
from shared.http.node import Node
from shared.tables.indexing import fields_of, indexed, key_of, name_of, prefix, shown_name, sortable
from shared.topology.topics import Table

SAMPLE = 64  # entries of each index that has the list's order
ROW = 5  # entries that are read, or looked up, in the time that a row takes
MOST = 20_000 * ROW  # for one page, in all partitions here: within the time that a peer waits for it
# after that much, indexes that are not in the list's order are looked at, and again after twice as much
FIRST_LOOK = 100 * ROW
_AFTER_ALL = b"\xff"  # never in UTF-8
_BY_KEY = "id"

T = TypeVar("T")

SortKey = tuple[bytes, bytes]
"""Where a row is in a list's order: its sortable value and its key."""

Bound = tuple[bytes | None, bytes | None]
"""The lowest and the highest sortable value wanted; None: no bound."""

Bounds = Mapping[str, Bound]
"""By indexed field."""


@dataclass(frozen=True)
class Wanted:
    """What a list asks for. order: the field by which rows sort before their keys; None: by key only."""

    order: str | None
    descending: bool
    after: SortKey | None
    bounds: Bounds

    @property
    def fixed(self) -> dict[str, bytes]:
        """The sortable values of the fields that have one value in all rows."""
        return {field: low for field, (low, high) in self.bounds.items() if low is not None and low == high}


class AccessPath(NamedTuple):
    """The entries of an index, or the keys of all rows, between two bounds.

    fixed: fields of which they have the one value wanted. start: how they all begin. valued: a value comes between that
    and the key. narrow: its field, if it is within a bound. sorts: they are in the list's order.
    """

    name: str
    fixed: frozenset[str]
    start: bytes
    low: bytes
    high: bytes
    valued: bool
    narrow: str | None
    sorts: bool


ALL_ROWS = AccessPath("", frozenset(), b"", b"", _AFTER_ALL, valued=False, narrow=None, sorts=True)


class Read(NamedTuple):
    """by: the indexes read."""

    by: list[str]
    entries: int
    rows: int


class Hit(NamedTuple):
    place: SortKey
    partition: int
    shown: BaseModel


@dataclass
class Scan:
    """One page's rows. lost: partitions that moved away meanwhile, of which it has none."""

    node: Node
    table: Table
    partitions: Collection[int]
    wanted: Wanted
    lost: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        wanted = self.wanted
        self._fixed = wanted.fixed
        self._value = self._fixed.get(wanted.order, b"") if wanted.order else b""
        self._sorted_by: tuple[str, ...] = ()
        if wanted.order is not None and wanted.order not in self._fixed:
            self._sorted_by = (wanted.order,)
        self._after = self._resumed(wanted)
        self._effort = 0
        self._entries, self._rows = Counter[int](), Counter[int]()
        self._by: list[str] = []
        self._whole: list[AccessPath] = []

    def run(self, limit: int, shown: Callable[[int, bytes], BaseModel | None]) -> tuple[list[Hit], SortKey | None]:
        """The first rows of which `shown` gives something, in order, and where to go on; None at the end.

        shown: (partition, key) → what the list shows of the row; None if it does not match. May raise NotReady.
        """
        found, listed = list[Hit](), set[bytes]()
        places = self._places() if self.partitions else iter(())
        for place, partition in places:
            # one that has changed meanwhile may come again
            view = None if place[1] in listed else self._shown(partition, place[1], shown)
            if view is not None:
                found.append(Hit(place, partition, view))
                listed.add(place[1])
            if len(found) == limit:
                return found, None if next(places, None) is None else place
            if self._effort >= MOST:
                return found, place
        return found, None

    def read_of(self, partition: int) -> Read:
        return Read([shown_name(name) or _BY_KEY for name in self._by], self._entries[partition], self._rows[partition])

    def _resumed(self, wanted: Wanted) -> SortKey | None:
        """The cursor's place; if all rows have one value, which need not be the cursor's, under that value."""
        after = wanted.after
        if after is None or self._sorted_by or after[0] == self._value:
            return after
        if (after[0] < self._value) != wanted.descending:
            return None
        return self._value, b"" if wanted.descending else _AFTER_ALL

    def _places(self) -> Iterator[tuple[SortKey, int]]:
        """Places in the list's order, from the cursor on, of rows that may match."""
        if any(low is not None and high is not None and low > high for low, high in self.wanted.bounds.values()):
            return
        paths = self._paths()
        lead = self._sparsest(_widest([path for path in paths if path.sorts]))
        loose = _loose(paths, lead)
        self._whole = [path for path in paths if not path.valued]
        self._use(lead)
        look, rest = FIRST_LOOK, list[tuple[SortKey, int]]()
        walks = (self._walk(partition, lead) for partition in sorted(self.partitions))
        for place, partition in merge(*walks, reverse=self.wanted.descending):
            self._note(partition)
            yield place, partition
            if loose and self._effort >= look:
                found = self._by_another(loose, lead, place)
                if found is not None:
                    rest = found
                    break
                look = 2 * self._effort
        yield from rest

    def _paths(self) -> list[AccessPath]:
        found = [path for index in self.table.indexes if (path := self._path(fields_of(index))) is not None]
        return found if self.wanted.order is not None else [ALL_ROWS, *found]

    def _path(self, fields: Sequence[str]) -> AccessPath | None:
        """None if the index tells nothing of what is wanted."""
        led = tuple(takewhile(self._fixed.__contains__, fields))
        rest = tuple(fields[len(led) :])
        low, high = self.wanted.bounds.get(rest[0], (None, None)) if rest else (None, None)
        narrow, sorts = rest[0] if (low, high) != (None, None) else None, rest == self._sorted_by
        if not (led or narrow or sorts):
            return None
        start = prefix(name_of(fields)) + b"".join(self._fixed[each] + b"\x00" for each in led)
        top = _AFTER_ALL if high is None else high + b"\x00" + _AFTER_ALL
        return AccessPath(
            name_of(fields), frozenset(led), start, start + (low or b""), start + top, bool(rest), narrow, sorts
        )

    def _sparsest(self, paths: Sequence[AccessPath]) -> AccessPath:
        """The path whose entries end first, or of which as many reach farthest; seen in one partition."""
        if len(paths) == 1:
            return paths[0]
        first = min(self.partitions)
        samples = [list(islice(self._walk(first, path), SAMPLE)) for path in paths]
        self._note(first, sum(map(len, samples)))
        fewest = min(map(len, samples))
        if fewest < SAMPLE:
            return paths[[len(sample) for sample in samples].index(fewest)]
        ends = [sample[-1] for sample in samples]
        return paths[ends.index(min(ends) if self.wanted.descending else max(ends))]

    def _use(self, path: AccessPath) -> None:
        """Look up in the others, the whole ones, what the path does not tell."""
        self._probes = self._probes_of(path)
        self._by += [each.name for each in (path, *self._probes) if each.name not in self._by]

    def _probes_of(self, path: AccessPath) -> list[AccessPath]:
        return _widest([each for each in self._whole if not each.fixed <= path.fixed])

    def _walk(self, partition: int, path: AccessPath) -> Iterator[tuple[SortKey, int]]:
        """The path's places, behind the cursor if they are in the list's order; none any more once it moves away."""
        try:
            if path is ALL_ROWS:
                for key in self.node.keys(self.table, partition, self._after[1] if self._after else b""):
                    yield (b"", key), partition
                return
            for entry in self._behind_cursor(partition, path):
                key = key_of(entry)
                value = entry[len(path.start) : -len(key) - 1] if path.valued else self._value
                yield (value, key), partition
        except NotReady:
            self.lost.add(partition)

    def _behind_cursor(self, partition: int, path: AccessPath) -> Iterator[bytes]:
        down = self.wanted.descending and path.sorts
        begin = path.high if down else path.low
        if path.sorts and self._after is not None:
            cursor = path.start + (b"\x00".join(self._after) if path.valued else self._after[1])
            begin = min(begin, cursor) if down else max(begin, cursor)
        for entry in self.node.keys_by(self.table, partition, path.name, begin, down):
            if entry < path.low if down else entry > path.high:
                return
            yield entry

    def _by_another(
        self, loose: Sequence[AccessPath], lead: AccessPath, after: SortKey
    ) -> list[tuple[SortKey, int]] | None:
        """The places behind `after` as the path with the fewest entries has them.

        None if that seems to take more effort than what there was, or takes more than leaves as much to read the rows.
        """
        held = len(self.partitions)
        left = max(0, MOST - self._effort) * held // (2 * held + len(loose))  # one partition of each is counted
        path = self._fewest(loose, min(self._effort, left) // held)
        if path is None:
            return None
        self._use(path)
        found = self._in_order(path, after, self._effort + left)
        self._probes = self._probes_of(lead) if found is None else []
        return found

    def _fewest(self, loose: Iterable[AccessPath], most: int) -> AccessPath | None:
        """The path that takes the least effort, if that is no more than `most` in one partition, as in the others."""
        first, fewest = min(self.partitions), None
        for path in loose:
            cost = 1 + (len(self._probes_of(path)) or (ROW if self._sorted_by else 0))
            entries = sum(1 for _ in islice(self._walk(first, path), most // cost + 1))
            self._note(first, entries)
            if entries * cost <= most:
                fewest, most = path, entries * cost
        return fewest

    def _in_order(self, path: AccessPath, after: SortKey, most: int) -> list[tuple[SortKey, int]] | None:
        """The places of the path's rows behind `after`, of those that may match; None if the effort passes `most`."""
        down, found = self.wanted.descending, list[tuple[SortKey, int]]()
        for place, partition in chain.from_iterable(self._walk(each, path) for each in sorted(self.partitions)):
            self._note(partition)
            its = self._place(partition, place[1])
            if self._effort > most:
                return None
            if its is not None and (its < after if down else its > after):
                found.append((its, partition))
        return sorted(found, reverse=down)

    def _place(self, partition: int, key: bytes) -> SortKey | None:
        """Where the row is in the list's order; None if it does not match."""
        if not self._sorted_by:
            return (self._value, key) if self._may_match(partition, key) else None

        def place(partition: int, key: bytes) -> SortKey | None:
            row = self.node.read(self.table, partition, key)
            return None if row is None else (sortable(indexed(to_jsonable_python(row.state), self._sorted_by[0])), key)

        return self._shown(partition, key, place)

    def _shown(self, partition: int, key: bytes, shown: Callable[[int, bytes], T | None]) -> T | None:
        """None if the row does not match, or the partition moves away."""
        if not self._may_match(partition, key):
            return None
        self._rows[partition] += 1
        self._effort += ROW
        try:
            return shown(partition, key)
        except NotReady:
            self.lost.add(partition)
            return None

    def _may_match(self, partition: int, key: bytes) -> bool:
        """By the indexes that the path did not tell of, without reading the row."""
        if partition in self.lost:
            return False
        self._effort += len(self._probes)
        try:
            return all(self.node.has_entry(self.table, partition, each.start + key) for each in self._probes)
        except NotReady:
            self.lost.add(partition)
            return False

    def _note(self, partition: int, entries: int = 1) -> None:
        self._entries[partition] += entries
        self._effort += entries


def _widest(paths: Sequence[AccessPath]) -> list[AccessPath]:
    """Without those whose fixed fields another has, and more."""
    return [path for path in paths if not any(path.fixed < other.fixed for other in paths)]


def _loose(paths: Iterable[AccessPath], lead: AccessPath) -> list[AccessPath]:
    """Those in another order that tell more than the lead; of each that tell the same, a whole one if there is one."""
    telling = (path for path in paths if not path.sorts)
    more = (each for each in telling if not each.fixed <= lead.fixed or each.narrow not in (None, lead.narrow))
    return [*{(each.fixed, each.narrow): each for each in sorted(more, key=lambda each: -each.valued)}.values()]
