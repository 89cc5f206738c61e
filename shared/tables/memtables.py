"""What the rows that RocksDB has not written to files yet take of a process, whatever the number of its stores.

Not counted is what a store without any takes: no flush gives it back.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from rocksdict import Options, Rdict, WriteBufferManager

LIMIT_BYTES = 64 * 2**20  # of all stores together; what is being written to files comes on top, and so does EMPTY_BYTES
EMPTY_BYTES = 160 * 2**10  # of a memtable with a row or a few: its filter and its first blocks

_BLOCK_BYTES = 64 * 2**10  # what a memtable takes at first: 512 KiB by default, also of a store that nobody writes
_ACTIVE = "rocksdb.cur-size-active-mem-table"


class Memtables:
    """Has the fullest stores of the process flushed when all of them together hold too much.

    RocksDB's WriteBufferManager only counts. With a limit of its own, it would flush the store that is written, with
    each write, while those that are not written keep the memory; docs/adr/0024 has the figures.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._counter = WriteBufferManager(sys.maxsize, allow_stall=False)
        self._stores: set[Rdict] = set()

    def count(self, options: Options) -> None:
        """Counts the stores that are opened with these options."""
        options.set_write_buffer_manager(self._counter)
        options.set_arena_block_size(_BLOCK_BYTES)

    def add(self, store: Rdict) -> None:
        self._stores.add(store)

    def discard(self, store: Rdict) -> None:
        """Must come before the store is closed."""
        self._stores.discard(store)

    def relieve(self) -> None:
        """Flushes in the background. Call it after each write: while there is room, it costs next to nothing."""
        if self._counter.get_usage() <= self._limit_bytes + EMPTY_BYTES * len(self._stores):
            return
        sizes = {store: _held(store) for store in tuple(self._stores)}  # another thread may open or close one
        excess = sum(sizes.values()) - self._limit_bytes
        if excess <= 0:
            return  # the rest is being flushed
        excess += self._limit_bytes // 4  # so that the next time is not at once
        for store in sorted(sizes, key=sizes.__getitem__, reverse=True):
            with suppress(Exception):  # the store's next write fails for the same reason, as on a full disk
                store.flush(wait=False)
            excess -= sizes[store]
            if excess <= 0:
                return


def _held(store: Rdict) -> int:
    """What a flush would give back, in bytes; nothing of a store that is closed, or is being closed."""
    try:
        return max(0, int(store.property_value(_ACTIVE) or 0) - EMPTY_BYTES)
    except Exception:  # whatever rocksdict says of it: the write that this comes after is done
        return 0
