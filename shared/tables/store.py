"""The local copy of a table: one small RocksDB per partition, always derivable from the changelog.

Rows and the changelog offset they reach are written in one batch, so after a crash the store holds an exact, possibly
older, prefix of its changelog, and the rest is restored. That is why RocksDB's own log is switched off, and why
a store that can't be opened is simply wiped.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteOptions,
)

from shared.domain.errors import NotReady
from shared.tables import indexing
from shared.tables.memtables import Memtables
from shared.topology.topics import KEPT_FOR_EVER

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Faust's defaults allow 2 GiB of cache and 192 MiB of write buffers for every partition.
BLOCK_CACHE = Cache(64 * 2**20)  # this and the next are one for all partitions of the process
MEMTABLES = Memtables()
WRITE_BUFFER_BYTES = 4 * 2**20
MAX_OPEN_FILES = 64
MAX_LOG_BYTES = 2**20
DELETIONS, DELETIONS_AMONG = 40, 128  # of consecutive entries in a file: then it is compacted at once

# Less than every key of a table: an aggregate id is never empty and has no control characters.
OFFSET_KEY = b"\x00changelog-offset"
ORIGIN_KEY = b"\x00indexes"  # earlier releases noted only these
FOLLOWED_KEY = b"\x00followed-until-ms"
FIRST_ROW = b"\x02"  # behind the entries of indexes; rows before FIRST_KEY are read by their key only
FIRST_KEY = b"\x20"

_ENTRIES, _FILES = "rocksdb.estimate-num-keys", "rocksdb.live-sst-files-size"

RELEASE_S = 2.0  # a closed store stays in use while a reader is within RocksDB
RELEASE_PAUSE_S = 0.005

_TOO_MANY_FILES = os.strerror(errno.EMFILE)


class StoreFailed(Exception):
    """RocksDB can't read or write a partition: corrupted files, a full disk. Its rows are in the changelog."""

    def __init__(self, store: RowStore, partition: int, error: Exception) -> None:
        super().__init__(f"{store.table_name}/{partition}: {error}")
        self.store = store
        self.partition = partition


class _Reading:
    """A place in a store that is read. RocksDB would go on in a store that was closed, which would stay in use."""

    def __init__(self, cursor: RdictIter) -> None:
        self._cursor: RdictIter | None = cursor

    @property
    def cursor(self) -> RdictIter:
        """Not to be held from one entry to the next. Raises NotReady."""
        if self._cursor is None:
            raise NotReady("the partition is moving to another worker")
        return self._cursor

    def end(self) -> None:
        self._cursor = None


class RowStore:
    """Encoded rows by (partition, key). Written by the engine only, readable at any time."""

    def __init__(
        self,
        path: Path,
        table_name: str,
        indexes: Sequence[str | tuple[str, ...]] = (),
        *,
        state_type: Any = Any,
        stored_ms: int = KEPT_FOR_EVER,
        ends: bool = False,
    ) -> None:
        """state_type: of the rows' states, for values that an older row lacks. ends: whether most rows are deleted in
        time.

        stored_ms: how long rows are kept after they were written here, by this machine's clock. Compactions remove them
        later, those of a store that is not written any more after 30 days.
        """
        self.table_name = table_name
        self._directory = path
        self._indexes = indexing.Indexes(indexes, state_type)
        # the values of a store with a limit have another format; a table has one from its first row on, or never
        self._access = None if stored_ms == KEPT_FOR_EVER else AccessType.with_ttl(stored_ms // 1000)
        self._ends = ends
        self._origins: dict[int, bytes] = {}
        self._dbs: dict[int, Rdict] = {}
        self._readings: dict[int, set[_Reading]] = defaultdict(set)
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign,assignment]

    def open(self, partition: int, changelog_id: str) -> int:
        """Offset of the last changelog record this partition holds; -1 when it holds none.

        changelog_id: the brokers' id of that topic. A store that follows another is wiped: its offset means nothing.
        """
        try:
            if partition not in self._dbs:
                self._dbs[partition] = self._open(partition)
            self._check_origin(partition, changelog_id)
            offset = self._dbs[partition].get(OFFSET_KEY)
        except Exception as error:
            raise StoreFailed(self, partition, error) from error
        return -1 if offset is None else int(offset)

    def close(self, partition: int) -> None:
        """Whoever reads it is told by NotReady at the next row.

        Rows that can't be written any more, on a full disk, are restored from the changelog later.
        """
        db = self._dbs.pop(partition, None)
        if db is None:
            return
        for reading in self._readings[partition].copy():
            reading.end()
        MEMTABLES.discard(db)
        try:
            db.close()  # writes its last rows, and closes even if that fails
        except Exception as error:
            log.warning("a store could not write its last rows", path=str(self._path(partition)), error=str(error))

    def close_all(self) -> None:
        for partition in list(self._dbs):
            self.close(partition)

    def remove(self) -> None:
        """Delete all local rows of all tables; the changelogs still have them."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def wipe(self, partition: int) -> None:
        """Delete the local rows of `partition`; the changelog still has them."""
        self.close(partition)
        shutil.rmtree(self._path(partition), ignore_errors=True)

    def size(self, partition: int) -> tuple[int, int]:
        """About how many entries there are, those of indexes included, and the bytes of its files. Raises NotReady."""
        try:
            db = self._dbs[partition]
            return db.property_int_value(_ENTRIES) or 0, db.property_int_value(_FILES) or 0
        except (KeyError, DbClosedError) as error:
            raise NotReady("the partition is moving to another worker") from error

    def get(self, partition: int, key: bytes) -> bytes | None:
        if key < FIRST_ROW:
            return None  # at most one of the store's own entries
        return self._value(partition, key)

    def _value(self, partition: int, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._dbs[partition].get(key)
        except (KeyError, DbClosedError) as error:
            raise NotReady("the partition is moving to another worker") from error
        except Exception as error:
            raise StoreFailed(self, partition, error) from error
        return value

    def followed_until(self, partition: int) -> float:
        """Up to when it has followed its changelog, in seconds since the epoch by the brokers; 0.0 if unknown."""
        return int(self._dbs[partition].get(FOLLOWED_KEY) or 0) / 1000

    def apply(
        self, partition: int, rows: Mapping[bytes, bytes | None], changelog_offset: int | None, at: float = 0.0
    ) -> None:
        """Write rows (None deletes) and the changelog offset they reach, both or neither. at: see `followed_until`."""
        db = self._dbs[partition]
        try:
            db.write(self._changes(partition, rows, changelog_offset, at), self._write_options)
        except StoreFailed:
            raise
        except Exception as error:
            raise StoreFailed(self, partition, error) from error
        MEMTABLES.relieve()

    def _changes(
        self, partition: int, rows: Mapping[bytes, bytes | None], changelog_offset: int | None, at: float
    ) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        for key, value in rows.items():
            if self._indexes.declared:
                self._reindex(batch, key, self.get(partition, key), value)
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        if changelog_offset is not None:
            batch.put(OFFSET_KEY, b"%d" % changelog_offset)
            batch.put(FOLLOWED_KEY, b"%d" % (at * 1000))
            if self._access is not None:  # else it would be removed before the offset
                batch.put(ORIGIN_KEY, self._origins[partition])
        return batch

    def scan(self, partition: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows of one partition in key order, starting behind `after`."""
        yield from self._walk(partition, max(after + b"\x00", FIRST_KEY), lambda at: (at.key(), at.value()))

    def has_entry(self, partition: int, entry: bytes) -> bool:
        """Whether an index has this entry."""
        return self._value(partition, entry) is not None

    def keys_by(self, partition: int, index: str, start: bytes = b"", descending: bool = False) -> Iterator[bytes]:
        """Entries of an index, by its name, in their order, starting behind the entry `start`."""
        prefix = indexing.prefix(index)
        # \xff never occurs in UTF-8, so it sorts behind all entries of the prefix
        begin = start or (prefix + b"\xff" if descending else prefix)
        for entry in self._walk(partition, begin, RdictIter.key, descending):
            if not entry.startswith(prefix):
                return
            if entry != start:
                yield entry

    def _walk(
        self, partition: int, start: bytes, take: Callable[[RdictIter], T], descending: bool = False
    ) -> Iterator[T]:
        """What `take` gives at each entry in turn.

        rocksdict's own loops end silently at an entry that can't be read.
        """
        seek, move = (RdictIter.seek_for_prev, RdictIter.prev) if descending else (RdictIter.seek, RdictIter.next)
        reading = self._begin(partition)
        try:
            seek(reading.cursor, start)
            while reading.cursor.valid():
                yield take(reading.cursor)
                move(reading.cursor)
            reading.cursor.status()
        except NotReady:
            raise
        except Exception as error:
            raise StoreFailed(self, partition, error) from error
        finally:
            reading.end()
            self._readings[partition].discard(reading)

    def _begin(self, partition: int) -> _Reading:
        try:
            db = self._dbs[partition]
            reading = _Reading(db.iter())
        except (KeyError, DbClosedError) as error:
            raise NotReady("the partition is moving to another worker") from error
        self._readings[partition].add(reading)
        if self._dbs.get(partition) is not db:  # closed by another thread, which may not have seen this one
            reading.end()
        return reading

    def _reindex(self, batch: WriteBatch, key: bytes, before: bytes | None, after: bytes | None) -> None:
        old = set(self._indexes.entries(key, before))
        new = set(self._indexes.entries(key, after))
        for entry in old - new:
            batch.delete(entry)
        for entry in new - old:
            batch.put(entry, b"")

    def _path(self, partition: int) -> Path:
        return self._directory / f"{self.table_name}-{partition}"

    def _check_origin(self, partition: int, changelog_id: str) -> None:
        """Wipe a store of another changelog, or written with other indexes, so that it is restored."""
        origin = changelog_id.encode() + b"\x00" + self._indexes.declared
        self._origins[partition] = origin
        found = self._dbs[partition].get(ORIGIN_KEY) or b""
        if found == origin:
            return
        if found != self._indexes.declared:  # else it is new, or an earlier release's
            log.info(
                "a local store has another changelog or other indexes and is wiped", path=str(self._path(partition))
            )
            self.wipe(partition)
            self._dbs[partition] = self._open(partition)
        note = WriteBatch(raw_mode=True)
        note.put(ORIGIN_KEY, origin)
        self._dbs[partition].write(note, self._write_options)

    def _open(self, partition: int) -> Rdict:
        path = self._path(partition)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _open_when_free(path, self._access, self._ends)
        except Exception as error:
            if _is_in_use(path, error):  # wiping it would damage a running worker
                raise
            if _TOO_MANY_FILES in str(error):
                raise OSError(f"{error}; fix: raise the limit of open files, `ulimit -n`") from error
            log.warning("a local store is unreadable and is wiped", path=str(path), error=str(error))
            self.wipe(partition)
            return _open_and_check(path, self._access, self._ends)


def _open_when_free(path: Path, access: AccessType | None, ends: bool) -> Rdict:
    """The store in this folder, once nobody uses it any more. Raises rocksdict's Exception."""
    deadline = time.monotonic() + RELEASE_S
    while True:
        try:
            return _open_and_check(path, access, ends)
        except Exception as error:
            if not _is_in_use(path, error) or time.monotonic() >= deadline:
                raise
        time.sleep(RELEASE_PAUSE_S)


def _is_in_use(path: Path, error: Exception) -> bool:
    """By this process or another: RocksDB words the two cases differently, but both name the lock file."""
    return str(path / "LOCK") in str(error)


def _open_and_check(path: Path, access: AccessType | None, ends: bool) -> Rdict:
    """The store in this folder. Raises rocksdict's Exception when its files are damaged."""
    options = _options()
    if ends:
        options.add_compact_on_deletion_collector_factory(DELETIONS_AMONG, DELETIONS, 0.0)
    # unless the family is named, a store that is opened again takes all rows for too old, once they are compacted
    families = None if access is None else {"default": options}
    db = Rdict(str(path), options, families, access or AccessType.read_write())
    try:
        db.get(OFFSET_KEY)
    except Exception:
        db.close()
        raise
    MEMTABLES.add(db)
    return db


def _options() -> Options:
    table = BlockBasedOptions()
    table.set_bloom_filter(10, block_based=False)
    table.set_block_cache(BLOCK_CACHE)
    table.set_cache_index_and_filter_blocks(True)  # so that they count towards the cache's size
    table.set_index_type(BlockBasedIndexType.binary_search())
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    MEMTABLES.count(options)
    # most look-ups are for keys that are new: without a filter they cost three times as much
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.02)
    options.set_max_write_buffer_number(2)
    options.set_max_open_files(MAX_OPEN_FILES)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(MAX_LOG_BYTES)
    options.set_stats_dump_period_sec(0)
    return options
