"""A partition of a table as the batch in hand sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Generic

from typing_extensions import TypeVar

from shared.domain.errors import RowUnreadable
from shared.domain.history_index import HistoryEntry
from shared.domain.outcomes import Decided
from shared.domain.row import Codec, Row
from shared.kafka.murmur2 import check_home
from shared.runtime.positions import Place
from shared.tables.store import RowStore
from shared.topology.topics import Table

ENCODED_AT_ONCE = 50  # rows: the HTTP side waits meanwhile


class RowUnwritable(Exception):
    """A new row could not be read again, by a state that `evolve` made: an infinite float, a number out of range.

    changelog: the partition that it would have been written to.
    """

    def __init__(self, changelog: Place, error: Exception) -> None:
        super().__init__(f"a new row of {changelog.topic} could not be read again: {error}")
        self.changelog = changelog


R = TypeVar("R", default=Row[Any])


class Rows(Generic[R]):
    """One partition of a table as a batch sees it: its own changes over the previous batch's, over the store's rows.

    Beside those of aggregates: outcomes, the table of what became of their commands, and ended, the history index.
    beside: the same partition of the tables that are joined with this one, and of the joined ones.
    """

    outcomes: Rows[Decided] | None = None
    ended: Rows[Row[HistoryEntry[Any]]] | None = None
    beside: Mapping[Table, Rows[Any]] = MappingProxyType({})

    def __init__(
        self,
        changelog: str,
        store: RowStore,
        partition: int,
        partitions: int | None,
        codec: Codec[R],
        pending: Mapping[bytes, R | None] = MappingProxyType({}),
        *,
        careful: bool = False,
    ) -> None:
        """partitions: their number if keys are aggregate ids, which murmur2 assigns to partitions; else None.

        pending: changes of the previous batch, which the store may not have yet. careful: check each change at once,
        so that the record which led to it is known; otherwise only the last change of each row, when it is encoded.
        """
        self.changelog = changelog
        self.store = store
        self.partition = partition
        self.partitions = partitions
        self.codec = codec
        self._pending = pending
        self._careful = careful
        self.changed: dict[bytes, R | None] = {}  # None: deleted

    def get(self, key: bytes) -> R | None:
        """Raises BadMessage for a new key that is no aggregate id or belongs elsewhere: no read would find its row."""
        if key in self.changed:
            return self.changed[key]
        if key in self._pending:
            return self._pending[key]
        value = self.store.get(self.partition, key)
        if value is None:
            if self.partitions is not None:
                check_home(key, self.partition, self.partitions)
            return None
        try:
            return self.codec.decode_whole(value)
        except ValueError as error:
            raise RowUnreadable(self.changelog, self.partition, key, error) from None

    def unstored(self) -> Iterator[tuple[bytes, R]]:
        """The rows that the store does not have yet, and so no index of it."""
        changes = {**self._pending, **self.changed}
        return ((key, row) for key, row in changes.items() if row is not None)

    def put(self, key: bytes, row: R | None) -> None:
        """Change a row; None deletes it. Raises RowUnwritable, with nothing changed."""
        if self._careful and row is not None:
            self._encoded([row])
        self.changed[key] = row

    def check(self, row: R) -> None:
        """Raises RowUnwritable, if changes are checked at once."""
        if self._careful:
            self._encoded([row])

    def encoded(self) -> dict[bytes, bytes | None]:
        """Raises RowUnwritable."""
        encoded: dict[bytes, bytes | None] = dict.fromkeys(self.changed)
        kept = ((key, row) for key, row in self.changed.items() if row is not None)
        while some := list(islice(kept, ENCODED_AT_ONCE)):
            keys, rows = zip(*some, strict=True)
            encoded |= zip(keys, self._encoded(rows), strict=True)
        return encoded

    def _encoded(self, rows: Sequence[R]) -> list[bytes]:
        try:
            return self.codec.encode_checked(rows)
        except (ValueError, RecursionError) as error:
            raise RowUnwritable(Place(self.changelog, self.partition), error) from error


def put_all(key: bytes, changes: Sequence[tuple[Rows[Any], Row[Any] | None]]) -> None:
    """Change the row of `key` in each of the tables, or as `Rows.put` raises, in none."""
    for rows, row in changes:
        if row is not None:
            rows.check(row)
    for rows, row in changes:
        rows.changed[key] = row
