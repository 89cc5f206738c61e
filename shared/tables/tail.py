"""A table's committed changes as they happen, read from its changelog by any worker.

One tailer reads a changelog for all streams of this worker. A stream that begins earlier reads what it has missed by a
consumer of its own, of which few fetch at once, and then goes on with the tailer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from shared.domain.errors import NotReady, RowUnreadable
from shared.domain.row import Codec
from shared.tables.feed import Change, Feed

log = structlog.get_logger(__name__)

POLL_MS = 1_000
POLL_RECORDS = 500
REPLAYS = 4  # fetches at once of streams that read what they have missed
REPLAY_FETCH_BYTES = 2**17  # for each partition
WAITING_BYTES = 2**22  # of changes that a stream has not sent yet


_Batches = AsyncGenerator[Sequence[Change], None]


class Changelogs:
    """Reads changelogs for the streams of one worker."""

    def __init__(self, new_consumer: Callable[..., AIOKafkaConsumer]) -> None:
        self._new_consumer = new_consumer
        self._tailers: dict[str, _Tailer] = {}
        self._replays = asyncio.Semaphore(REPLAYS)

    @asynccontextmanager
    async def read(
        self,
        changelog: str,
        partitions: int,
        codec: Codec[Any],
        after: Mapping[int, int | None],
        key: bytes | None = None,
    ) -> AsyncIterator[Feed]:
        """The changes committed behind the offsets `after`, by partition; all None to start at the present end.

        key: only those of this row. Raises NotReady while the brokers can't be read, and LookupError for an offset the
        changelog never had.
        """
        tailer = self._tailers.get(changelog)
        if tailer is None or tailer.over:
            tailer = self._tailers[changelog] = _Tailer(self._new_consumer(), changelog, partitions, codec)
        tailer.streams += 1
        follower = _Follower(tailer, key)
        try:
            await tailer.begun()
            begins = {p: offset for p, offset in after.items() if offset is not None}
            if begins:
                ends = await tailer.ends(begins)
                if beyond := [p for p in begins if begins[p] >= ends[p]]:
                    raise LookupError(f"{changelog} has no such offset in partitions {beyond}")
            else:
                begins = {p: tailer.next[p] - 1 for p in after}
            if all(offset + 1 >= tailer.next[p] for p, offset in begins.items()):
                follower.join(begins)
            batches = self._batches(tailer, follower, begins)
            try:
                yield Feed(begins, batches)
            finally:
                await batches.aclose()
        except KafkaError as failure:
            raise NotReady(f"the changelog {changelog} can't be read now: {type(failure).__name__}") from failure
        finally:
            follower.leave()
            tailer.streams -= 1
            if tailer.streams == 0:
                if self._tailers.get(changelog) is tailer:
                    del self._tailers[changelog]
                await tailer.stop()

    async def _batches(self, tailer: _Tailer, follower: _Follower, begins: Mapping[int, int]) -> _Batches:
        """Batches of changes, until the changelog can't be read any more, or too many wait."""
        try:
            if not follower.joined:
                async for changes in self._missed(tailer, follower, begins):
                    yield changes
            async for changes in follower.batches():
                yield changes
        except (KafkaError, RowUnreadable) as failure:
            log.warning("a stream of changes ends: its changelog can't be read", reason=str(failure))

    async def _missed(self, tailer: _Tailer, follower: _Follower, begins: Mapping[int, int]) -> _Batches:
        """The changes from `begins` to where `follower` has joined the tailer when they end."""
        reader = self._new_consumer(fetch_bytes=REPLAY_FETCH_BYTES)
        tps = {p: TopicPartition(tailer.changelog, p) for p in begins}
        try:
            await reader.start()
            reader.assign(list(tps.values()))
            starts = await reader.beginning_offsets(list(tps.values()))
            for p, tp in tps.items():
                reader.seek(tp, max(begins[p] + 1, starts[tp]))  # a reprocessed view has no older changes
            most = dict(tailer.next)
            while any([await reader.position(tp) < most[p] for p, tp in tps.items()]):
                if changes := await self._fetched(reader, tailer.codec, follower.key):
                    yield changes
            reached = {p: await reader.position(tp) for p, tp in tps.items()}
            # from here to `join` without a pause, in which the tailer would go on
            rest = {p: max(reached[p], tailer.next[p]) for p in begins}
            follower.join({p: until - 1 for p, until in rest.items()})
            while any([await reader.position(tp) < rest[p] for p, tp in tps.items()]):
                fetched = await self._fetched(reader, tailer.codec, follower.key)
                if changes := [change for change in fetched if change.offset < rest[change.partition]]:
                    yield changes
        finally:
            await reader.stop()

    async def _fetched(self, reader: AIOKafkaConsumer, codec: Codec[Any], key: bytes | None) -> Sequence[Change]:
        async with self._replays:  # not while the client takes it, who may be slow
            fetched = await reader.getmany(timeout_ms=POLL_MS, max_records=POLL_RECORDS)
        records = (record for some in fetched.values() for record in some)
        return [_change(record, codec) for record in records if key is None or record.key == key]


def _change(record: Any, codec: Codec[Any]) -> Change:
    """Raises RowUnreadable."""
    try:
        row = codec.decode(record.value) if record.value else None
    except ValueError as error:
        raise RowUnreadable(record.topic, record.partition, record.key, error) from error
    return Change(record.partition, record.offset, record.key, row)


class _Tailer:
    """Reads a changelog from its present end on, and decodes only what a follower wants.

    next: the offset by partition up to which followers have got everything. streams: how many need it. over: it has
    failed, or was stopped.
    """

    def __init__(self, reader: AIOKafkaConsumer, changelog: str, partitions: int, codec: Codec[Any]) -> None:
        self.changelog = changelog
        self.codec = codec
        self.next: dict[int, int] = {}
        self.streams = 0
        self.over = False
        self.followers: dict[bytes | None, set[_Follower]] = defaultdict(set)
        self._reader = reader
        self._tps = {p: TopicPartition(changelog, p) for p in range(partitions)}
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._run())

    async def begun(self) -> None:
        """Raises KafkaError."""
        await asyncio.wait((self._begun, self._task), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def ends(self, partitions: Mapping[int, Any]) -> Mapping[int, int]:
        """The last stable offsets. Raises KafkaError."""
        found = await self._reader.end_offsets([self._tps[p] for p in partitions])
        return {tp.partition: end for tp, end in found.items()}

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)  # a failure is in the log

    async def _run(self) -> None:
        try:
            await self._reader.start()
            self._reader.assign(list(self._tps.values()))
            self.next = dict(await self.ends(self._tps))
            for p, tp in self._tps.items():
                self._reader.seek(tp, self.next[p])
            self._begun.set_result(None)
            while True:
                fetched = await self._reader.getmany(timeout_ms=POLL_MS, max_records=POLL_RECORDS)
                for records in fetched.values():
                    self._hand_out(records)
        except KafkaError as failure:
            log.warning("streams of changes end: their changelog can't be read", reason=str(failure))
            raise
        finally:
            self.over = True
            for follower in self._all():
                follower.end()
            await self._reader.stop()

    def _hand_out(self, records: Sequence[Any]) -> None:
        for record in records:
            self.next[record.partition] = record.offset + 1
            if wanting := [*self.followers.get(None, ()), *self.followers.get(record.key, ())]:
                try:
                    change = _change(record, self.codec)
                except RowUnreadable as unreadable:
                    log.error("streams of changes end: a row can't be read", reason=str(unreadable))
                    for follower in wanting:
                        follower.end()
                    continue
                for follower in wanting:
                    follower.put(change, len(record.key) + len(record.value or b""))

    def _all(self) -> list[_Follower]:
        return [follower for some in self.followers.values() for follower in some]


class _Follower:
    """One stream's part in what a tailer reads."""

    def __init__(self, tailer: _Tailer, key: bytes | None) -> None:
        self.key = key
        self.joined = False
        self._tailer = tailer
        self._begins: Mapping[int, int] = {}
        self._waiting: deque[Change] = deque()
        self._bytes = 0
        self._over = False
        self._arrived = asyncio.Event()

    def join(self, begins: Mapping[int, int]) -> None:
        """Get what comes behind these offsets, by partition, from now on."""
        self._begins, self.joined = begins, True
        self._tailer.followers[self.key].add(self)
        self._over = self._tailer.over

    def put(self, change: Change, size: int) -> None:
        if change.offset <= self._begins.get(change.partition, change.offset):
            return
        self._bytes += size
        if self._bytes > WAITING_BYTES:
            log.info("a stream of changes ends: its client is too slow", waiting_bytes=self._bytes)
            self.end()
        else:
            self._waiting.append(change)
            self._arrived.set()

    def end(self) -> None:
        self._over = True
        self._waiting.clear()
        self._arrived.set()
        self.leave()

    def leave(self) -> None:
        self._tailer.followers[self.key].discard(self)
        if not self._tailer.followers[self.key]:
            del self._tailer.followers[self.key]

    async def batches(self) -> _Batches:
        while not self._over:
            await self._arrived.wait()
            self._arrived.clear()
            if changes := list(self._waiting):
                self._waiting.clear()
                self._bytes = 0
                yield changes
