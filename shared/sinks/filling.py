"""One sink at work: claims it in the database, reads on from the database's position, and writes batch after batch."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from shared.domain.errors import BadMessage, OnefoldError
from shared.kafka.brokers import Brokers, BrokersUnavailable
from shared.kafka.reader import OffsetGone, Reader, ReadRecord, ReadRefused
from shared.privacy.sealing import Sealer
from shared.runtime.clock import elapsed_s
from shared.runtime.positions import Place
from shared.sinks.database import Claim, Database, Fenced, Lease, Origin, Positions, RowRefused
from shared.sinks.sink import BadRow, Changed, Sink
from shared.topology.topics import DELETIONS_KEPT_S, Topology

log = structlog.get_logger(__name__)

A = TypeVar("A")

READ_AT_ONCE = 2_000
BATCH_ROWS = 20_000  # in a transaction at most; fewer if they come slowly
POLL_MS = 200
SOON_MS = 10  # while rows wait for the transaction before theirs
PAUSE_S = 0.2  # before the next try; doubled until
PAUSE_MAX_S = 10.0
GONE_FIX = "raise `version` of the sink, whose new table is filled from what the topic still has"


class SinkStale(OnefoldError):
    """The sink was not filled for so long that its topic may no longer tell of every row that was deleted meanwhile.

    Operator action: raise `version` in the sink; its new table is then filled from the start.
    """


@dataclass
class _Batch:
    """What is read and not written.

    reached: where the next one begins. last: what was read last. bad: why it must end there. beyond: where it is over.
    """

    reached: dict[int, int]
    changed: Changed = field(default_factory=dict)
    last: ReadRecord | None = None
    bad: BadRow | None = None
    beyond: dict[int, int] = field(default_factory=dict)


class Filling:
    """Fills one sink until it is cancelled. Whatever is not as it should be, it waits and tries again."""

    def __init__(
        self, sink: Sink, topology: Topology, database: Database, bootstrap: str, owner: str, lease_s: float
    ) -> None:
        """owner: unique among all processes there ever were. lease_s: how long one that says nothing keeps the sink."""
        self._sink = sink
        self._topology = topology
        self._topic = sink.source.topic_in(topology)
        self._database = database
        self._bootstrap = bootstrap
        self._owner = owner
        self._lease_s = lease_s
        self._pause_s = PAUSE_S
        self._at_most = BATCH_ROWS  # halved while one of them is refused
        self._told: set[str] = set()  # why it waits, as far as the log says
        self._beyond: dict[int, int] = {}  # positions from which on that is over
        # its own: a database that hangs delays no other sink
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=sink.table.name)

    async def run(self, sealer: Sealer | None) -> None:
        """sealer: opens personal text for a sink that `opens` it."""
        while True:
            try:
                await self._fill(sealer)
            except Fenced as fenced:
                log.warning("a sink is left to another process", sink=self._sink.table.name, reason=str(fenced))
            except RowRefused:
                continue  # with fewer rows at once, until one record is left
            except Exception as error:  # also a bug: other sinks go on
                await self._tell(error)
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    async def _tell(self, error: Exception) -> None:
        """In the log once, not every few seconds for hours, and in the database if that is possible; without the text
        of what was not raised on purpose, which may quote personal values.
        """
        expected = isinstance(error, (OnefoldError, OffsetGone, ReadRefused))
        reason = str(error) if expected else type(error).__name__
        if reason not in self._told:
            frames = [] if expected and type(error) is not BadRow else _frames(error.__cause__ or error)
            log.error("a sink waits", sink=self._sink.table.name, reason=reason, frames=frames)
        self._told.add(reason)
        with suppress(OnefoldError):
            await self._ask(self._database.tell, self._sink, reason)

    async def _fill(self, sealer: Sealer | None) -> None:
        await self._ask(self._prepare)
        claim = await self._claimed()
        if not self._told and not self._beyond:
            log.info("a sink is filled", sink=self._sink.table.name, epoch=claim.epoch, positions=dict(claim.positions))
        reader = Reader(self._bootstrap, self._topology.group)
        try:
            await self._ask(self._refuse_stale, claim.positions)
            await self._copy(reader, claim, sealer)
        except OffsetGone as gone:
            raise OffsetGone(f"{gone}; fix: {GONE_FIX}") from gone
        finally:
            await reader.stop()
            with suppress(OnefoldError):
                await self._ask(self._database.release, self._sink, claim.epoch)

    def _prepare(self) -> None:
        brokers = Brokers(self._bootstrap)
        starts = brokers.starts(self._topic)
        if not (topic_ids := brokers.topic_ids([self._topic])):
            raise BrokersUnavailable(f"the brokers have no topic {self._topic}; fix: run `provision`")
        self._database.prepare(self._sink, Origin(self._topic, min(topic_ids), starts))

    def _refuse_stale(self, positions: Positions) -> None:
        """Not what has all there is, nor a partition of which nothing was read. Raises SinkStale."""
        written_ms = self._database.written_ms(self._sink) if self._sink.source.DELETES else None
        if written_ms is None or time.time() - written_ms / 1000 < DELETIONS_KEPT_S:
            return
        bounds = Brokers(self._bootstrap).bounds([Place(self._topic, number) for number in positions])
        if any(found.start < positions[place.number] < found.stable for place, found in bounds.items()):
            day = datetime.fromtimestamp(written_ms / 1000, UTC).date()
            raise SinkStale(
                f"{self._sink.table.name} was last written on {day}; {self._topic} tells of deleted rows for a day, "
                "so some may have stayed; fix: raise `version` of the sink"
            )

    async def _claimed(self) -> Claim:
        """Once its owner has left, or has said nothing for so long as this process has listened."""
        seen: Lease | None = None
        since = elapsed_s()
        while True:
            lease = await self._ask(self._database.lease, self._sink)
            if lease != seen:
                seen, since = lease, elapsed_s()
            free = lease.owner in ("", self._owner) or elapsed_s() - since > self._lease_s
            if free and (claim := await self._ask(self._database.claim, self._sink, lease, self._owner)):
                return claim
            await asyncio.sleep(self._lease_s / 10)

    async def _copy(self, reader: Reader, claim: Claim, sealer: Sealer | None) -> None:
        """Reads and decodes a batch while the one before is written."""
        reader.assign({Place(self._topic, number): position for number, position in claim.positions.items()})
        batch = _Batch(dict(claim.positions))
        written, told_at = claim.positions, elapsed_s()
        writing: asyncio.Future[None] = asyncio.Future()
        writing.set_result(None)
        try:
            while True:
                if len(batch.changed) < self._at_most:
                    await self._read(reader, batch, sealer)
                    if batch.bad is None and not writing.done():
                        continue
                await writing
                if batch.reached != written or elapsed_s() - told_at > self._lease_s / 3:
                    writing = asyncio.create_task(self._write(claim, written, batch))
                    written, told_at = batch.reached, elapsed_s()
                    if batch.bad is not None:
                        await writing
                if batch.bad is not None:
                    self._beyond |= batch.beyond
                    raise batch.bad
                batch = _Batch(dict(batch.reached))
        finally:
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(self, claim: Claim, before: Positions, batch: _Batch) -> None:
        moved = {partition: position for partition, position in batch.reached.items() if position != before[partition]}
        try:
            await self._ask(self._database.write, self._sink, claim.epoch, before, moved, batch.changed)
        except RowRefused as refused:
            self._halve(batch, refused)
            raise
        if all(batch.reached[partition] >= position for partition, position in self._beyond.items()):
            self._go_on()

    def _halve(self, batch: _Batch, refused: RowRefused) -> None:
        """Raises BadRow if that is not possible."""
        if self._at_most == 1 and batch.last is not None:  # all changes are of that record
            self._stand(batch, batch.last, f"the database refuses it: {refused}", refused.__cause__ or refused)
            self._beyond = batch.beyond
            assert batch.bad is not None
            raise batch.bad
        self._at_most = max(1, min(self._at_most, len(batch.changed)) // 2)
        self._beyond |= batch.reached

    def _go_on(self) -> None:
        if self._told:
            log.info("a sink goes on", sink=self._sink.table.name)
        self._pause_s, self._at_most, self._told, self._beyond = PAUSE_S, BATCH_ROWS, set(), {}

    async def _read(self, reader: Reader, batch: _Batch, sealer: Sealer | None) -> None:
        """Adds what has come, up to a record that is bad. Raises NotReady while personal text can't be opened."""
        found = await reader.getmany(SOON_MS if batch.changed else POLL_MS, min(READ_AT_ONCE, self._at_most))
        for place, records in found.items():
            batch.reached[place.number] = await self._add(batch, records, sealer)
            batch.last = records[-1]
            if batch.bad is not None:
                return
        for partition in batch.reached:  # also behind what is no record
            batch.reached[partition] = reader.position(Place(self._topic, partition))

    async def _add(self, batch: _Batch, records: Sequence[ReadRecord], sealer: Sealer | None) -> int:
        """The offset to go on from: that of the bad record, if there is one."""
        decoded: list[Any] = []
        for record in records:
            try:
                decoded.append(self._sink.source.decode(record.value))
            except (ValueError, BadMessage) as error:
                reason = error.reason if isinstance(error, BadMessage) else type(error).__name__
                self._stand(batch, record, f"it can't be read: {reason}", error)
                break
        if sealer is not None:
            decoded = await opened(self._sink, sealer, decoded)
        change, passes = self._sink.change, self._sink.source.passes
        for record, each in zip(records, decoded, strict=False):
            try:
                if passes(each):
                    change(batch.changed, (record.key or b"").decode(), each)
            except Exception as error:  # a bug in a service's function stops its sink alone
                self._stand(batch, record, f"{type(error).__name__} in rows", error)
                return record.offset
        return records[-1].offset + 1 if len(decoded) == len(records) else records[len(decoded)].offset

    def _stand(self, batch: _Batch, record: ReadRecord, reason: str, cause: BaseException) -> None:
        place = f"{record.topic}/{record.partition}@{record.offset}"
        batch.bad = BadRow(f"{place}: {reason}; fix: correct the sink {self._sink.name}, and start it again")
        batch.bad.__cause__ = cause
        batch.beyond[record.partition] = record.offset + 1

    def _ask(self, ask: Callable[..., A], *asked: Any) -> asyncio.Future[A]:
        return asyncio.get_running_loop().run_in_executor(self._thread, ask, *asked)


async def opened(sink: Sink, sealer: Sealer, decoded: Sequence[Any]) -> list[Any]:
    """What the sink's source gave, with personal text in the clear. Raises NotReady while it can't be opened."""
    places, part = [place for place, each in enumerate(decoded) if each is not None], sink.source.PART
    models = await sealer.unsealed([getattr(decoded[place], part) for place in places])
    clear = [*decoded]
    for place, model in zip(places, models, strict=True):
        clear[place] = replace(decoded[place], **{part: model})
    return clear


def _frames(error: BaseException) -> list[str]:
    return [f"{each.filename}:{each.lineno} in {each.name}" for each in traceback.extract_tb(error.__traceback__)]
