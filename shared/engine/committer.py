"""One batch at a time goes to the brokers, then to the stores, then to those who wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from shared.engine.asking import InThread
from shared.engine.batch import Batch
from shared.engine.guards import GrowthGuard
from shared.kafka.transactions import Record, RecordTooLarge, TransactionAborted, TransactionalProducer
from shared.runtime import failpoints
from shared.runtime.clock import brokers_clock
from shared.runtime.positions import Place
from shared.tables.rows import RowUnwritable
from shared.tables.store import StoreFailed

Encoded = Mapping[Place, Mapping[bytes, bytes | None]]
"""Encoded rows by key (None deletes), by changelog partition."""

Written = Mapping[Place, int]
"""The offset of the last record that a transaction wrote, by partition."""


class Committed(NamedTuple):
    """All took effect, and everybody was told."""


class Aborted(NamedTuple):
    """Nothing took effect, or it is unknown whether: only the brokers can tell. lost_membership: see the exception.

    unwritable: the changelog whose row could not be read again, if that is the cause.
    """

    reason: str
    lost_membership: bool = False
    unwritable: Place | None = None


class TooLarge(NamedTuple):
    """Nothing took effect, because brokers refuse a record."""

    refusal: RecordTooLarge


class StoreBroken(NamedTuple):
    """All took effect at the brokers, and a store could not be written."""

    failure: StoreFailed


Result = Committed | Aborted | TooLarge | StoreBroken


class Committer:
    """task: the commit under way, until its result was asked for.

    events_written: called in the commit's thread, once the transaction is committed. committed: called on the loop,
    once the stores are written, with how many seconds the commit took.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        in_thread: InThread,
        events_written: Callable[[Written], None],
        committed: Callable[[Batch, Written, float], None],
    ) -> None:
        self.task: asyncio.Task[Result] | None = None
        self._producer = producer
        self._in_thread = in_thread
        self._events_written = events_written
        self._committed = committed
        self.growth = GrowthGuard()

    @property
    def is_committing(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def has_result(self) -> bool:
        return self.task is not None and self.task.done()

    async def begin(self, batch: Batch, member: bytes) -> None:
        """Returns once the batch is sent: that needs the interpreter lock, as filling the next one would."""
        sent = asyncio.Event()
        self.task = asyncio.create_task(self._commit(batch, member, sent))
        await sent.wait()

    async def result(self) -> Result | None:
        """That of the commit under way, once it has ended; None if there is none. Raises TransactionRefused."""
        task, self.task = self.task, None
        return None if task is None else await task

    async def stop(self) -> None:
        if self.task is not None:
            await asyncio.wait([self.task])

    async def _commit(self, batch: Batch, member: bytes, sent: asyncio.Event) -> Result:
        began = time.monotonic()
        try:
            try:
                changes = await self._in_thread(self._send, batch)
            finally:
                sent.set()
            written = await self._in_thread(self._finish, batch, changes, member)
        except RowUnwritable as failure:
            return Aborted(str(failure), unwritable=failure.changelog)
        except TransactionAborted as aborted:
            return Aborted(str(aborted), aborted.lost_membership)
        except RecordTooLarge as refusal:
            return TooLarge(refusal)
        except StoreFailed as failure:
            return StoreBroken(failure)
        self._committed(batch, written, time.monotonic() - began)
        return Committed()

    def _send(self, batch: Batch) -> Encoded:
        changes = {place: rows.encoded() for place, rows in batch.rows.items() if rows.changed}
        records = [
            Record(topic, key, value, partition)
            for (topic, partition), rows in changes.items()
            for key, value in rows.items()
        ]
        self.growth.check(changes)
        self._producer.send(batch.records + records)
        return changes

    def _finish(self, batch: Batch, changes: Encoded, member: bytes) -> Written:
        written = self._producer.commit(batch.offsets, member)
        self._events_written(written)
        failpoints.reached("after_commit")
        for place, rows in changes.items():
            batch.rows[place].store.apply(place.number, rows, written[place], brokers_clock.now())
        failpoints.reached("after_store")
        return written
