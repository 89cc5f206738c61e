"""A table's committed changes as Server-Sent Events; any worker can serve them, and any other can resume them.

The id of an event holds the stream's offset in every partition of the changelog, so `Last-Event-ID` resumes exactly
after it: no change is sent twice, and none is left out except those that a later change of the same row has superseded
and compaction has removed. After an id of another version of the table, which has another changelog, every row is
sent again.
"""
# No `from __future__ import annotations`: FastAPI reads the annotations of the nested functions below.

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Annotated, Any, TypeVar

import structlog
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from shared.domain.errors import NotReady
from shared.domain.ids import AggregateId
from shared.http.auth import Authority, OwnRows, caller_of, own_rows
from shared.http.guard import OwnedRouter
from shared.http.limits import client_of
from shared.http.node import Node, Present, as_json, of_all, view_sealer
from shared.http.peers import Peers, is_hop
from shared.http.problems import Problem, not_valid
from shared.http.refusals import TooMany
from shared.http.versions import VERSION_HEADER, other_version, owner_in
from shared.runtime.clock import brokers_clock
from shared.tables.feed import Change, Feed
from shared.topology.topics import Table, Topology

log = structlog.get_logger(__name__)

T = TypeVar("T")

RETRY_MS = 1_000
MAX_ID_CHARS = 8_000

Shown = Callable[[Sequence[Change]], Awaitable[Sequence[BaseModel | None]]]
"""What is sent of each row; None to send nothing of it."""

_ID = re.compile(r"([a-z0-9.-]{1,249}):(\d{1,6}@(-1|\d{1,18})(,\d{1,6}@(-1|\d{1,18}))*)", re.ASCII)


class ChangesQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: AggregateId | None = Field(None, description="only this row's changes")


class ChangedRow(BaseModel):
    """The data of a `changed` event. row: as a GET shows it; null in a `deleted` event."""

    key: str
    sequence: int | None
    row: dict[str, Any] | None


RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Endless. `changed` and `deleted` events with a ChangedRow as data; `: ping` in between"},
    422: {"model": Problem, "description": "Not a valid request, or a Last-Event-ID of another stream"},
    503: {"model": Problem, "description": "Too many streams here, or the changelog can't be read; see Retry-After"},
}


class Streams:
    """Counts the streams that are open at this worker, up to a limit, and those of each caller, up to another."""

    def __init__(self, limit: int, per_caller: int) -> None:
        self.limit = limit
        self.per_caller = per_caller
        self._of = Counter[str]()

    @property
    def open(self) -> int:
        return self._of.total()

    @contextmanager
    def place(self, caller: str) -> Iterator[None]:
        """For one stream. Raises NotReady and TooMany."""
        if self.open >= self.limit:
            raise NotReady(f"{self.open} streams are open at this worker, which is its limit")
        if self._of[caller] >= self.per_caller:
            raise TooMany(RETRY_MS / 1000, f"this client has {self.per_caller} open streams at this worker, its limit")
        self._of[caller] += 1
        try:
            yield
        finally:
            self._of[caller] -= 1
            self._of += Counter()  # forgets who has none


def format_id(changelog: str, positions: Mapping[int, int]) -> str:
    return f"{changelog}:" + ",".join(f"{partition}@{offset}" for partition, offset in sorted(positions.items()))


def parse_id(text: str) -> tuple[str, dict[int, int]]:
    """What `format_id` was given. Raises ValueError."""
    found = _ID.fullmatch(text)
    if found is None:
        raise ValueError("not the id of an event of this stream")
    pairs = (part.split("@") for part in found[2].split(","))
    return found[1], {int(partition): int(offset) for partition, offset in pairs}


def change_routes(
    node: Node, table: Table, present: Present, *, owned: bool | str, peers: Peers | None = None
) -> APIRouter:
    """`GET /changes/<table>`.

    peers: to pass on what another version has to answer; None where there is none.
    owned: whether keys have owners, who may follow only their own; or the field of rows that names their owner.
    """
    router = _router(owned)
    secrets = view_sealer(node, present)

    async def shown(changes: Sequence[Change]) -> Sequence[BaseModel | None]:
        views = [None if change.row is None else present(change.key.decode(), change.row) for change in changes]
        texts = iter(await secrets.unsealed([view for view in views if view is not None]))
        return [None if view is None else next(texts) for view in views]

    async def opened(
        request: Request,
        query: Annotated[ChangesQuery, Query()],
        last_event_id: Annotated[
            str | None, Header(max_length=MAX_ID_CHARS, description="resume after this event")
        ] = None,
    ) -> AsyncIterator[AsyncIterator[ServerSentEvent]]:
        key = query.key
        partitions = of_all(node, table) if key is None else [node.partition(key.encode())]
        own = own_rows(request)
        after = _after(last_event_id, node.topology, table, partitions)
        at = partial(format_id, node.topology.changelog(table).name)
        version = other_version(request, node)
        over = partial(_over, request, node, version)
        try:
            with request.app.state.streams.place(client_of(request)):
                if version is not None and peers is not None:
                    owner = owner_in(node.routes, version, partitions[0])
                    async with peers.stream(request, owner) as sent:
                        yield until(over, _parsed(sent))
                    return
                async with node.changes(table, after, None if key is None else key.encode()) as feed:
                    yield _events(feed, own, shown, at, over)
        except LookupError as unknown:
            raise _unprocessable(str(unknown)) from unknown

    @router.get(f"/changes/{table.name}", response_class=EventSourceResponse, responses=RESPONSES)
    async def changes(
        events: Annotated[AsyncIterator[ServerSentEvent], Depends(opened)],
    ) -> AsyncIterator[ServerSentEvent]:
        """Committed changes of one row or all, as they are made. Begins now, or after Last-Event-ID."""
        async for event in events:
            yield event

    return router


def _router(owned: bool | str) -> APIRouter:
    if isinstance(owned, str):
        return OwnedRouter(owned_by=owned, tags=["changes"])
    return OwnedRouter("key", tags=["changes"]) if owned else APIRouter(tags=["changes"])


def _after(
    last_event_id: str | None, topology: Topology, table: Table, partitions: Sequence[int]
) -> Mapping[int, int | None]:
    if last_event_id is None:
        return dict.fromkeys(partitions)
    try:
        changelog, after = parse_id(last_event_id)
    except ValueError as error:
        raise _unprocessable(str(error)) from error
    if not topology.is_changelog(changelog, table):
        raise _unprocessable("an id of another stream: it names another table")
    if changelog != topology.changelog(table).name:
        return dict.fromkeys(partitions, -1)
    if after.keys() != set(partitions):
        raise _unprocessable("an id of another stream: it names other partitions")
    return dict(after)


def _unprocessable(message: str) -> RequestValidationError:
    return not_valid("header", "last-event-id", message)


async def _events(
    feed: Feed,
    own: OwnRows | None,
    shown: Shown,
    at: Callable[[Mapping[int, int]], str],
    over: Callable[[], Coroutine[Any, Any, None]],
) -> AsyncIterator[ServerSentEvent]:
    sent = dict(feed.begins)
    yield ServerSentEvent(comment="from here", id=at(sent), retry=RETRY_MS)

    def concerns(change: Change) -> bool:
        """A deleted row names nobody any more."""
        return own is None or (change.row is not None and own.has(change.row.state))

    try:
        async for changes in until(over, feed.changes):
            views = iter(await shown([change for change in changes if concerns(change)]))
            for change in changes:
                sent[change.partition] = change.offset
                if concerns(change) and (event := _event(change, next(views), at(sent))):
                    yield event
    except NotReady as failure:
        log.warning("a stream of changes ends: a row can't be shown", reason=str(failure))


def _event(change: Change, view: BaseModel | None, event_id: str) -> ServerSentEvent | None:
    key = change.key.decode()
    if change.row is None:
        data = ChangedRow(key=key, sequence=None, row=None)
        return ServerSentEvent(event="deleted", id=event_id, data=data)
    if view is None:
        return None
    data = ChangedRow(key=key, sequence=change.row.sequence, row=from_json(as_json(view)))
    return ServerSentEvent(event="changed", id=event_id, data=data)


async def _parsed(events: AsyncIterator[str]) -> AsyncIterator[ServerSentEvent]:
    async for event in events:
        fields: dict[str, str] = {}
        for line in event.split("\n"):
            name, _, value = line.partition(":")
            fields[name] = f"{fields[name]}\n{value[1:]}" if name in fields else value[1:]
        yield ServerSentEvent(
            comment=fields.get(""),
            event=fields.get("event"),
            id=fields.get("id"),
            retry=int(fields["retry"]) if "retry" in fields else None,
            raw_data=fields.get("data"),
        )


async def _over(request: Request, node: Node, version: int | None) -> None:
    """Returns when `ended` does, or when another version than the one that answers now has to."""
    ends = [ended(request.app.state.closing, caller_of(request))]
    if node.routes is not None and not is_hop(request) and VERSION_HEADER not in request.headers:
        ends.append(node.routes.moved(version or node.topology.version))
    waiting = [asyncio.ensure_future(each) for each in ends]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


async def ended(closing: asyncio.Event, caller: Authority | None) -> None:
    """Returns when the worker begins to stop or the caller's token expires.

    The client resumes at another worker or with another token.
    """
    left_s = caller.expires_at - brokers_clock.now() if caller is not None else None
    with suppress(TimeoutError):
        async with asyncio.timeout(left_s):
            await closing.wait()


async def until(over: Callable[[], Coroutine[Any, Any, None]], batches: AsyncIterator[T]) -> AsyncIterator[T]:
    """The batches until `over` returns."""
    closed = asyncio.ensure_future(over())
    batch: asyncio.Future[T] | None = None
    try:
        with suppress(StopAsyncIteration):
            while not closed.done():
                batch = asyncio.ensure_future(anext(batches))
                await asyncio.wait((batch, closed), return_when=asyncio.FIRST_COMPLETED)
                if not batch.done():
                    return
                yield batch.result()
    finally:
        closed.cancel()
        if batch is not None:
            batch.cancel()
            await asyncio.wait([batch])  # else its reader would still be in use
