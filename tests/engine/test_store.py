"""The local store: consistent after any crash, wiped when its files are damaged, never wiped while it is in use."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any
from unittest.mock import Mock

import pytest
from rocksdict import RdictIter, WriteBatch

from shared.domain.errors import NotReady
from shared.domain.state import State
from shared.tables import indexing
from shared.tables import store as store_module
from shared.tables.memtables import EMPTY_BYTES, Memtables
from shared.tables.store import ORIGIN_KEY, RowStore, StoreFailed
from shared.topology.topics import HOUR_MS, KEPT_FOR_EVER
from tests.accounts.app import app
from tests.accounts.domain.state import Account
from tests.accounts.topology import ACCOUNTS
from tests.waiting import eventually

CHANGELOG_ID = "c-1"
MEMTABLE_BYTES = 4 * 2**20
ROWS = {b"account-%d" % number: b'{"state": {"phase": %d}, "note": "%d"}' % (number, 9**900) for number in range(2_000)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RowStore]:
    store = _store(tmp_path)
    yield store
    for partition in list(store._dbs):
        store.close(partition)


def test_rows_and_the_offset_they_reach_are_written_together(store: RowStore) -> None:
    assert store.open(0, CHANGELOG_ID) == -1
    store.apply(0, {b"a": b"1", b"b": b"2"}, 7)
    store.apply(0, {b"a": None, b"b": b"3"}, 9)
    assert (store.get(0, b"a"), store.get(0, b"b"), store.open(0, CHANGELOG_ID)) == (None, b"3", 9)


def test_a_store_that_was_closed_has_its_rows_again(store: RowStore, tmp_path: Path) -> None:
    store.open(0, CHANGELOG_ID)
    store.apply(0, dict(ROWS), 41)
    store.close(0)
    again = _store(tmp_path)
    assert again.open(0, CHANGELOG_ID) == 41
    assert dict(again.scan(0)) == ROWS
    again.close(0)


def test_a_store_tells_its_size_until_it_moves(store: RowStore, tmp_path: Path) -> None:
    store.open(0, CHANGELOG_ID)
    store.apply(0, dict(ROWS), 41)
    store.close(0)
    with pytest.raises(NotReady):
        store.size(0)
    store.open(0, CHANGELOG_ID)
    entries, size = store.size(0)
    assert len(ROWS) <= entries <= len(ROWS) + 10
    assert 0 < size < sum(file.stat().st_size for file in tmp_path.rglob("*"))


def test_a_store_knows_until_when_it_has_followed_its_changelog(store: RowStore) -> None:
    store.open(0, CHANGELOG_ID)
    assert store.followed_until(0) == 0.0
    store.apply(0, {b"a": b"1"}, 7, 1_700_000_000.5)
    store.close(0)
    store.open(0, CHANGELOG_ID)
    assert store.followed_until(0) == 1_700_000_000.5
    assert [key for key, _ in store.scan(0)] == [b"a"]


def test_a_killed_process_leaves_an_older_consistent_store(tmp_path: Path) -> None:
    """RocksDB's own log is off: only the latest writes are lost, rows and offset alike."""
    writer = f"""
import os, pathlib
from tests.engine.test_store import CHANGELOG_ID, _store
store = _store(pathlib.Path({str(tmp_path)!r}))
store.open(0, CHANGELOG_ID)
for offset in range(60_000):
    store.apply(0, {{b"count": b"%d" % offset, b"row-%d" % offset: b"x" * 400}}, offset)
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", writer], check=False, timeout=120)
    store = _store(tmp_path)
    offset = store.open(0, CHANGELOG_ID)
    assert 0 <= offset < 60_000, "RocksDB flushed nothing or everything: this proves nothing"
    assert store.get(0, b"count") == b"%d" % offset
    rows = {key for key, _ in store.scan(0) if key.startswith(b"row-")}
    assert rows == {b"row-%d" % number for number in range(offset + 1)}
    store.close(0)


@pytest.mark.parametrize("after", [b"", b"\x00", b"\x01", b"\x01phase"])
def test_a_scan_from_a_cursor_before_the_rows_begins_at_the_first_row(tmp_path: Path, after: bytes) -> None:
    """The store's own entries and its index entries sort before the rows."""
    store = _store(tmp_path, "phase")
    store.open(0, CHANGELOG_ID)
    store.apply(0, dict(ROWS), 41)
    assert dict(store.scan(0, after)) == ROWS
    store.close(0)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("changelog_id", "kept"), [(CHANGELOG_ID, 41), ("c-2", -1)], ids=["the same", "another"])
def test_a_store_of_another_changelog_is_wiped(store: RowStore, changelog_id: str, kept: int, closed: bool) -> None:
    store.open(0, CHANGELOG_ID)
    store.apply(0, dict(ROWS), 41)
    if closed:
        store.close(0)
    assert store.open(0, changelog_id) == kept


@pytest.mark.parametrize("indexes", [(), ("phase",)], ids=["without indexes", "with an index"])
def test_a_store_of_an_earlier_release_is_kept(tmp_path: Path, indexes: tuple[str, ...]) -> None:
    """It noted its indexes only."""
    store = _store(tmp_path, *indexes)
    store.open(0, CHANGELOG_ID)
    store.apply(0, dict(ROWS), 41)
    as_before = WriteBatch(raw_mode=True)
    if indexes:
        as_before.put(ORIGIN_KEY, store._indexes.declared)
    else:
        as_before.delete(ORIGIN_KEY)
    store._dbs[0].write(as_before)
    assert store.open(0, CHANGELOG_ID) == 41
    assert store.open(0, "c-2") == -1
    store.close(0)


class Customer(State):
    name: str


class Placed(Customer):
    """As of a later release."""

    region: str = "eu"


def test_rows_of_before_a_field_are_found_by_its_default(tmp_path: Path) -> None:
    row, entries = b'{"state":{"name":"ann"}}', [indexing.entry("region", "eu", b"ann")]
    for state_type, reached in [(Customer, -1), (Placed, -1), (Placed, 7)]:
        store = _store(tmp_path, "region", state_type=state_type)
        assert store.open(0, CHANGELOG_ID) == reached, "it is wiped unless it has the entries of this release"
        store.apply(0, {b"ann": row}, 7)
        found = list(store.keys_by(0, "region"))
        store.close(0)
    assert found == entries


@pytest.mark.parametrize("row", [b"not JSON", b"[]", b'{"rows":1}', b'"state"'])
def test_a_committed_row_that_nobody_can_read_is_stored_and_found_by_null(tmp_path: Path, row: bytes) -> None:
    store = _store(tmp_path, "region", state_type=Placed)
    store.open(0, CHANGELOG_ID)
    store.apply(0, {b"ann": row}, 7)
    store.apply(0, {b"ann": row, b"bob": row}, 8)
    found = list(store.keys_by(0, "region"))
    store.close(0)
    assert found == [indexing.entry("region", None, key) for key in (b"ann", b"bob")]


def test_a_worker_gives_a_store_the_type_of_its_states() -> None:
    assert app.row_tables[ACCOUNTS.name].state_type == Account


def _scramble_the_manifest(folder: Path) -> None:
    for manifest in folder.glob("MANIFEST-*"):
        manifest.write_bytes(bytes(byte ^ 0xFF for byte in manifest.read_bytes()))


def _remove_current(folder: Path) -> None:
    (folder / "CURRENT").unlink()


def _remove_the_rows(folder: Path) -> None:
    for table in folder.glob("*.sst"):
        table.unlink()


def _flip_here_and_there(folder: Path) -> None:
    (table,) = folder.glob("*.sst")
    data = bytearray(table.read_bytes())
    for at in range(8_000, len(data) // 2, 100):  # past the store's own entries
        data[at] ^= 0xFF
    table.write_bytes(data)


def _flip_everywhere(folder: Path) -> None:
    for table in folder.glob("*.sst"):
        table.write_bytes(bytes(byte ^ 0xFF for byte in table.read_bytes()))


@pytest.mark.parametrize("damage", [_scramble_the_manifest, _remove_current, _remove_the_rows, _flip_everywhere])
def test_a_damaged_store_is_wiped_when_it_is_opened(
    store: RowStore, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    _filled_and_closed(store)
    damage(tmp_path / "accounts-0")
    assert store.open(0, CHANGELOG_ID) == -1
    assert store.get(0, b"account-1") is None
    store.apply(0, {b"account-1": b"1"}, 3)
    assert store.open(0, CHANGELOG_ID) == 3


def test_a_damaged_row_is_not_taken_for_an_absent_one(store: RowStore, tmp_path: Path) -> None:
    _filled_and_closed(store)
    _flip_here_and_there(tmp_path / "accounts-0")
    assert store.open(0, CHANGELOG_ID) == 41
    failures = sum(_fails(store, key) for key in random.Random(1).sample(sorted(ROWS), 500))
    assert failures > 50


@pytest.mark.parametrize("descending", [False, True])
def test_damage_met_by_a_scan_is_not_taken_for_its_end(tmp_path: Path, descending: bool) -> None:
    store = _store(tmp_path, "phase")
    _filled_and_closed(store)
    _flip_here_and_there(tmp_path / "accounts-0")
    assert store.open(0, CHANGELOG_ID) == 41
    with pytest.raises(StoreFailed, match="block checksum mismatch"):
        list(store.scan(0))
    with pytest.raises(StoreFailed, match="block checksum mismatch"):
        list(store.keys_by(0, "phase", descending=descending))
    store.close(0)


def test_a_store_that_another_process_has_open_is_left_alone(store: RowStore, tmp_path: Path) -> None:
    store.open(0, CHANGELOG_ID)
    store.apply(0, dict(ROWS), 41)
    rival = f"""
import pathlib
from shared.tables import store
from tests.engine.test_store import CHANGELOG_ID, _store
store.RELEASE_S = 0.0
_store(pathlib.Path({str(tmp_path)!r})).open(0, CHANGELOG_ID)
"""
    ended = subprocess.run([sys.executable, "-c", rival], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode != 0
    assert "lock file" in ended.stderr
    assert dict(store.scan(0)) == ROWS


@pytest.mark.parametrize(("end", "left"), [(RowStore.close, 41), (RowStore.wipe, -1)])
def test_a_store_that_is_still_read_is_opened_at_once_and_its_readers_are_told(
    store: RowStore, monkeypatch: pytest.MonkeyPatch, end: Callable[[RowStore, int], None], left: int
) -> None:
    """However long they take until they ask for their next rows."""
    monkeypatch.setattr(store_module, "RELEASE_S", 0.0)
    readers = [_reader_of(store), _reader_of(store)]
    end(store, 0)
    assert store.open(0, CHANGELOG_ID) == left
    for reader in readers:
        with pytest.raises(NotReady):
            next(reader)
    assert len(list(store.scan(0))) == (len(ROWS) if left == 41 else 0)


def test_a_store_is_opened_once_a_reader_within_rocksdb_is_done(
    store: RowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "RELEASE_S", 60.0)
    within = _within_rocksdb(store)
    store.close(0)
    Timer(0.1, within.clear).start()
    assert store.open(0, CHANGELOG_ID) == 41


def test_a_store_that_is_in_use_for_too_long_is_left_alone(store: RowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "RELEASE_S", 0.05)
    within = _within_rocksdb(store)
    store.close(0)
    with pytest.raises(StoreFailed, match="LOCK"):
        store.open(0, CHANGELOG_ID)
    within.clear()
    assert store.open(0, CHANGELOG_ID) == 41
    assert dict(store.scan(0)) == ROWS


@pytest.mark.parametrize("end", [RowStore.close, RowStore.wipe])
def test_a_store_that_cannot_write_its_last_rows_is_closed_all_the_same(
    store: RowStore, tmp_path: Path, end: Callable[[RowStore, int], None]
) -> None:
    store.open(0, CHANGELOG_ID)
    store.apply(0, dict(ROWS), 41)
    (folder,) = tmp_path.rglob("accounts-0")
    shutil.rmtree(folder)
    end(store, 0)
    assert store.open(0, CHANGELOG_ID) == -1


def test_a_store_is_not_wiped_for_want_of_open_files(store: RowStore, tmp_path: Path) -> None:
    store.open(0, CHANGELOG_ID)
    store.apply(0, dict(ROWS), 41)
    store.close(0)
    again, limits = _store(tmp_path), resource.getrlimit(resource.RLIMIT_NOFILE)
    for spare in range(10):
        lowest = os.open(os.devnull, os.O_RDONLY)  # every file from here on is above the limit
        os.close(lowest)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, limits[1]))
            with suppress(StoreFailed):
                again.open(0, CHANGELOG_ID)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert again.open(0, CHANGELOG_ID) == 41
        again.close(0)


def test_what_rocksdb_notes_about_itself_does_not_fill_the_disk(store: RowStore, tmp_path: Path) -> None:
    store.open(0, CHANGELOG_ID)
    (options,) = tmp_path.glob("*-0/OPTIONS-*")
    assert {"max_log_file_size=1048576", "keep_log_file_num=1", "stats_dump_period_sec=0"} <= set(
        options.read_text().split()
    )


def test_a_worker_may_open_more_files_than_its_shell_allows() -> None:
    worker = "import resource; {}; from tests.accounts.app import app; print({})"
    lowered = "resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))"
    code = worker.format(lowered, "resource.getrlimit(resource.RLIMIT_NOFILE)[0]")
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
    assert int(done.stdout) > 256


def test_reading_a_partition_that_is_not_open_raises_not_ready(store: RowStore) -> None:
    with pytest.raises(NotReady):
        store.get(5, b"account-1")


def test_a_store_of_rows_that_are_kept_by_time_has_them_however_often_it_is_opened(tmp_path: Path) -> None:
    store, rows = _store(tmp_path, stored_ms=48 * HOUR_MS), {b"account-%d" % number: b"1" for number in range(10, 30)}
    for offset, key in enumerate(rows):  # each leaves a file: some are compacted
        assert store.open(0, CHANGELOG_ID) == offset - 1
        store.apply(0, {key: b"1"}, offset)
        store.close(0)
    store.open(0, CHANGELOG_ID)
    assert _after_compaction(store, b"account-10") == b"1"
    assert dict(store.scan(0)) == rows | {b"new": b"2"}
    store.close(0)


def test_rows_are_removed_when_their_time_is_over_and_the_store_follows_its_changelog(tmp_path: Path) -> None:
    store = _store(tmp_path, stored_ms=2_000)
    store.open(0, CHANGELOG_ID)
    store.apply(0, {b"old": b"1"}, 7)
    store.close(0)
    assert store.open(0, CHANGELOG_ID) == 7
    eventually(lambda: _after_compaction(store, b"old"), lambda value: value is None)
    assert store.get(0, b"new") == b"2"
    store.close(0)
    assert store.open(0, CHANGELOG_ID) == 9
    store.close(0)


def test_stores_share_the_memory_for_rows_that_are_in_no_file_yet(
    store: RowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with those that nobody writes any more: a worker may hold hundreds."""
    monkeypatch.setattr(store_module, "MEMTABLES", Memtables(MEMTABLE_BYTES))
    for partition in range(12):
        store.open(partition, CHANGELOG_ID)
        for offset in range(100):
            store.apply(partition, {b"row-%d" % offset: os.urandom(MEMTABLE_BYTES // 400)}, offset)
    eventually(lambda: _memtables(store), lambda held: held <= MEMTABLE_BYTES + 12 * EMPTY_BYTES)
    assert [store.open(partition, CHANGELOG_ID) for partition in range(12)] == [99] * 12


def test_stores_that_hold_next_to_nothing_are_not_flushed(store: RowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are: else each write of a worker with hundreds of stores would make files of a few rows."""
    monkeypatch.setattr(store_module, "MEMTABLES", Memtables(MEMTABLE_BYTES))
    for partition in range(60):
        store.open(partition, CHANGELOG_ID)
    assert _memtables(store) > MEMTABLE_BYTES, "an empty memtable takes less than it did: this proves nothing"
    for offset in range(10):
        for partition in range(60):
            store.apply(partition, {b"row-%d" % offset: b"x"}, offset)
    assert not [file for each in store._dbs.values() for file in Path(each.path()).glob("*.sst")]


def test_a_store_that_is_closed_meanwhile_is_no_failure_of_what_was_written(
    store: RowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit writes in its thread: its rows are written, whatever becomes of another partition's."""
    monkeypatch.setattr(store_module, "MEMTABLES", Memtables(0))
    store.open(0, CHANGELOG_ID)
    store.open(1, CHANGELOG_ID)
    store._dbs[1].close()
    being_closed = Mock(property_value=Mock(side_effect=RuntimeError("Already mutably borrowed")))
    store_module.MEMTABLES._stores.add(being_closed)
    for offset in range(4):
        store.apply(0, {b"row": os.urandom(EMPTY_BYTES)}, offset)
    eventually(lambda: list(Path(store._dbs[0].path()).glob("*.sst")))
    store._dbs.pop(1)


@pytest.mark.parametrize(
    ("passing", "live", "partitions"),
    [pytest.param(300_000, 20_000, 1), pytest.param(10_000_000, 100_000, 8, marks=pytest.mark.long)],
)
def test_a_store_takes_little_more_than_its_live_rows(tmp_path: Path, passing: int, live: int, partitions: int) -> None:
    """Most of its rows have ended: its files are never for long more than 1.5 times those that are left."""
    store, rows, digits = RowStore(tmp_path, "carts", ends=True), deque[tuple[int, bytes, int]](), random.Random(1)
    for partition in range(partitions):
        store.open(partition, CHANGELOG_ID)
    for begins in range(0, passing, 2_500):
        changes: list[dict[bytes, bytes | None]] = [{} for _ in range(partitions)]
        for number in range(begins, begins + 2_500):
            key, partition = b"cart-%010d" % number, number % partitions
            changes[partition][key] = b'{"sequence":1,"state":{"items":["%b"]}}' % digits.randbytes(80).hex().encode()
            rows.append((partition, key, len(key) + len(changes[partition][key] or b"")))
            if len(rows) > live:
                ended, gone, _ = rows.popleft()
                changes[ended][gone] = None
        for partition, changed in enumerate(changes):
            store.apply(partition, changed, begins)
        if begins % (passing // 6) == 0:
            size = sum(each for *_, each in rows)
            eventually(lambda: _file_bytes(tmp_path), lambda found, most=1.5 * size: found <= most)  # type: ignore[misc]
    store.close_all()


def _file_bytes(folder: Path) -> int:
    """Of the files with rows; those that a compaction has just replaced may go meanwhile."""
    with suppress(FileNotFoundError):
        return sum(each.stat().st_size for each in folder.rglob("*.sst"))
    return sys.maxsize


def _memtables(store: RowStore) -> int:
    """What all memtables of the stores hold, in bytes."""
    return sum(int(each.property_value("rocksdb.cur-size-all-mem-tables") or 0) for each in store._dbs.values())


def _after_compaction(store: RowStore, key: bytes) -> bytes | None:
    """What the store has under `key`; others are written before."""
    store.apply(0, {b"new": b"2"}, 9)
    store._dbs[0].flush()
    store._dbs[0].compact_range(None, None)
    return store.get(0, key)


def _store(folder: Path, *indexes: str, state_type: Any = Any, stored_ms: int = KEPT_FOR_EVER) -> RowStore:
    return RowStore(folder, "accounts", indexes, state_type=state_type, stored_ms=stored_ms)


def _filled_and_closed(store: RowStore) -> None:
    store.open(0, CHANGELOG_ID)
    store.apply(0, dict(ROWS), 41)
    store.close(0)


def _reader_of(store: RowStore) -> Iterator[tuple[bytes, bytes]]:
    """A reader in the middle of a filled partition."""
    store.open(0, CHANGELOG_ID)
    store.apply(0, dict(ROWS), 41)
    reader = store.scan(0)
    next(reader)
    return reader


def _within_rocksdb(store: RowStore) -> list[RdictIter]:
    """What a reader of a filled partition holds while RocksDB seeks its next row."""
    store.open(0, CHANGELOG_ID)
    store.apply(0, dict(ROWS), 41)
    return [store._dbs[0].iter()]


def _fails(store: RowStore, key: bytes) -> bool:
    try:
        assert store.get(0, key) == ROWS[key]
    except StoreFailed:
        return True
    return False
