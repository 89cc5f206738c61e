"""An aggregate's past: its events in pages, and its state as of a sequence or a time.

As fresh as a read of its row. The events come from the log: only the records that the history index names; see
shared.domain.history_index.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import takewhile
from typing import Annotated, Any

from fastapi import HTTPException, Query, Request, Response
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema
from pydantic_core import core_schema

from shared.domain.decider import Decider, fold
from shared.domain.envelope import EventEnvelope
from shared.domain.errors import NotReady
from shared.domain.history_index import HistoryEntry, LogBegins, ended_key, key_of, number_of
from shared.domain.ids import check_aggregate_id
from shared.domain.message import Event
from shared.domain.row import Row
from shared.domain.times import Instant
from shared.http import queries
from shared.http.auth import own_rows
from shared.http.node import Node, Present
from shared.http.peers import Peers
from shared.http.problems import Problem
from shared.http.queries import MinPosition, Queries, Reading, Wait
from shared.http.refusals import Archived
from shared.http.versions import other_version, owner_in
from shared.topology.topics import Table, Topic

MAX_PAGE = 100
CATCH_UP_S = 2.0  # the history index follows rows at once where a reader waits for them
_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)

RESPONSES: dict[int | str, dict[str, Any]] = {
    **queries.RESPONSES,
    410: {"model": Problem, "description": "Retention has removed it from the log; the archive has it"},
}

AsOf = Annotated[
    Annotated[int, Field(ge=1, lt=2**63)] | Instant,
    Field(union_mode="left_to_right"),
    GetPydanticSchema(
        lambda type_, read: core_schema.custom_error_schema(
            read(type_),
            "as_of",
            custom_error_message="must be a sequence from 1, or an instant such as 2026-11-20T10:00:00Z",
        )
    ),
]


class EventsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    cursor: Annotated[int, Field(ge=0, lt=2**63, description="of the previous page: a sequence to go on after")] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50
    min_position: MinPosition = None
    wait: Wait = 0.0


class PastEvent(BaseModel):
    """An event as it is read today: older versions are upcast."""

    event_id: str
    type: str
    schema_version: int
    aggregate_id: str
    sequence: int
    occurred_at: datetime
    correlation_id: str
    causation_id: str | None
    data: dict[str, Any]


class PastEvents(BaseModel):
    """items in order; cursor: for the next page, null at the end."""

    items: list[PastEvent]
    cursor: int | None


class PastReading(Reading):
    as_of: AsOf | None = Field(
        None, description="a sequence; or a time, for the state before the first event that occurred later"
    )

    @property
    def by_standby(self) -> bool:
        return super().by_standby and self.as_of is None


PastReadingQuery = Annotated[PastReading, Query()]


class History(Queries):
    """Reads one table, and the past of its aggregates."""

    def __init__(
        self, node: Node, peers: Peers, table: Table, present: Present, decider: Decider[Any, Any, Any]
    ) -> None:
        """Raises ValueError for a service whose topology declares no history."""
        super().__init__(node, peers, table, present)
        log, index = node.topology.history, node.topology.history_index
        if log is None or index is None:
            fix = "give its Topology `history=`, the topic of its events"
            raise ValueError(f"{node.topology.service} declares no history; fix: {fix}")
        self._decider = decider
        self._log = log
        self._index = index

    async def events(self, request: Request, aggregate_id: str, query: EventsQuery) -> Response:
        """A page of its events from its owner: this worker, or one hop away."""
        with request.app.state.turns.turn(request):
            return await self._events(request, aggregate_id, query)

    async def by_id(self, request: Request, aggregate_id: str, reading: Reading) -> Response:
        if not isinstance(reading, PastReading) or reading.as_of is None:
            return await super().by_id(request, aggregate_id, reading)
        with request.app.state.turns.turn(request):
            return await super().by_id(request, aggregate_id, reading)

    async def _events(self, request: Request, aggregate_id: str, query: EventsQuery) -> Response:
        partition = self._node.partition(check_aggregate_id(aggregate_id).encode())
        if (version := other_version(request, self._node, partition)) is not None:
            acting = owner_in(self._node.routes, version, partition)
            return await self._awaited(request, self._peers.forward(request, acting, query.wait))
        if self._node.serves(self._table, partition):
            return await self._awaited(request, self._page(request, aggregate_id, partition, query))
        owner = self._node.owner(self._table, partition)
        return await self._awaited(request, self._peers.forward(request, owner, query.wait))

    async def _page(self, request: Request, aggregate_id: str, partition: int, query: EventsQuery) -> Response:
        deadline = asyncio.get_running_loop().time() + query.wait
        await self._wait_for_position(partition, query.min_position, deadline)
        newest = self._newest(request, partition, aggregate_id)
        headers = self._as_owner(partition)
        if not newest:
            return self._unknown(aggregate_id, headers)
        last = min(newest, query.cursor + query.limit)
        past = await self._past(aggregate_id, partition, newest, last, deadline)
        events = await past.events(query.cursor, last)
        self._check_still_served(partition)
        shown = await self._sealer.unsealed([event.data for event in events])
        items = b",".join(map(self._decider.event_codec.encode, map(_with_data, events, shown)))
        cursor = b"%d" % last if last < newest else b"null"
        body = b'{"items":[%b],"cursor":%b}' % (items, cursor)
        return Response(body, media_type="application/json", headers=headers)

    def _newest(self, request: Request, partition: int, aggregate_id: str) -> int:
        """How many events the aggregate has had, also if its row has ended; 0 for one that the caller can't see."""
        row = self._visible(request, partition, aggregate_id.encode())
        if row is None and own_rows(request) is None:
            row = self._node.read(self._index, partition, ended_key(aggregate_id))
        return 0 if row is None else row.sequence

    async def _as_wanted(
        self,
        request: Request,
        aggregate_id: str,
        partition: int,
        row: Row[Any] | None,
        reading: Reading,
        deadline: float,
    ) -> Row[Any] | None:
        as_of = reading.as_of if isinstance(reading, PastReading) else None
        if as_of is None or not (newest := self._newest(request, partition, aggregate_id)):
            return row
        last = as_of if isinstance(as_of, int) else newest
        if last > newest:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"{aggregate_id!r} has {newest} events so far")
        past = await self._past(aggregate_id, partition, newest, last, deadline)
        then = await past.at(as_of)
        self._check_still_served(partition)
        return then

    async def _past(self, aggregate_id: str, partition: int, newest: int, last: int, deadline: float) -> _Past:
        """The past of an aggregate with `newest` events, at least up to the event `last`. Raises NotReady."""
        past = _Past(self._node, self._decider, self._log, self._index, aggregate_id, partition, newest)
        deadline = max(deadline, asyncio.get_running_loop().time() + CATCH_UP_S)
        if not await self._wait_until(lambda: past.includes(last), partition, deadline):
            raise NotReady(f"the history of {aggregate_id!r} has not caught up with event {last}")
        return past


def _with_data(event: EventEnvelope[Any], data: Event) -> EventEnvelope[Any]:
    return event if data is event.data else replace(event, data=data)


@dataclass(frozen=True, slots=True)
class _Past:
    """One aggregate's past, at the worker that serves it. The methods raise Archived and NotReady."""

    node: Node
    decider: Decider[Any, Any, Any]
    log: Topic
    index: Table
    aggregate_id: str
    partition: int
    newest: int

    def includes(self, sequence: int) -> bool:
        """Whether the index has got as far as this event, which may itself be older than all of it."""
        entries = map(self._entry, (number_of(sequence), number_of(self.newest)))
        return any(entry is not None and entry.last >= sequence for entry in entries)

    async def at(self, as_of: int | datetime) -> Row[Any]:
        return await (self._at_sequence(as_of) if isinstance(as_of, int) else self._at_time(as_of))

    async def _at_sequence(self, sequence: int) -> Row[Any]:
        entry = self._known(self._entry(number_of(sequence)))
        if sequence == entry.last:
            return Row(entry.last, entry.after, {}, -1)
        return self._folded(entry, await self.events(entry.first - 1, sequence))

    async def _at_time(self, moment: datetime) -> Row[Any]:
        """The state after the longest prefix of the history in which no event occurred later than `moment`."""
        numbers = range(number_of(self.newest) + 1)
        number = bisect_right(numbers, moment, key=lambda n: e.latest if (e := self._entry(n)) else _BEFORE_ALL)
        entry = self._known(self._entry(min(number, numbers[-1])))
        if entry.latest <= moment:
            return Row(entry.last, entry.after, {}, -1)
        events = await self.events(entry.first - 1, entry.last)
        return self._folded(entry, list(takewhile(lambda event: event.occurred_at <= moment, events)))

    async def events(self, after: int, last: int) -> Sequence[EventEnvelope[Any]]:
        """The events after the sequence `after`, up to `last`."""
        entries = filter(None, map(self._entry, range(number_of(after + 1), number_of(last) + 1)))
        offsets = [offset for entry in entries for offset in entry.between(after, last)]
        if len(offsets) < last - after:
            raise self._archived(0)
        try:
            values = await self.node.records(self.log, self.partition, offsets)
        except LogBegins as cut:
            raise self._archived(cut.offset) from cut
        events = [self.decider.event_codec.decode(value) for value in values]
        if any((e.aggregate_id, e.sequence) != (self.aggregate_id, n) for n, e in enumerate(events, after + 1)):
            raise RuntimeError(f"{self.log.name} is not the log that the history index refers to")
        return events

    def _folded(self, entry: HistoryEntry[Any], events: Sequence[EventEnvelope[Any]]) -> Row[Any]:
        state = fold(self.decider.evolve, [event.data for event in events], entry.before)
        return Row(entry.first - 1 + len(events), state, {}, -1)

    def _known(self, entry: HistoryEntry[Any] | None) -> HistoryEntry[Any]:
        if entry is None or entry.before is None:
            raise self._archived(0)
        return entry

    def _entry(self, number: int) -> HistoryEntry[Any] | None:
        row = self.node.read(self.index, self.partition, key_of(self.aggregate_id, number))
        return None if row is None else row.state

    def _archived(self, begin: int) -> Archived:
        """begin: the log's first offset; 0 when it is the index that begins later."""
        numbers = range(number_of(self.newest) + 1)
        number = bisect_left(numbers, begin, key=lambda n: e.offsets[-1] if (e := self._entry(n)) else -1)
        entry = self._entry(number)
        first = entry.first + bisect_left(entry.offsets, begin) if entry else self.newest + 1
        return Archived(
            f"{self.log.name} has events of {self.aggregate_id!r} only after event {first - 1}: retention has removed "
            f"the rest, which is in the archive of {self.node.topology.service}, if one is kept"
        )
