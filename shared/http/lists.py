"""Lists over all partitions: every owner is asked, and the answer says which partitions it covers and how fresh.

Each partition walks one index (or the keys) in the list's order and stops at the limit, so neither memory nor time
grows with the table. A cursor is a place in that order, not in a worker: it survives rebalances.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from shared.es.errors import NotReady
from shared.es.row import Row
from shared.http.node import Node
from shared.http.peers import HOP_HEADER, Peers
from shared.http.problems import Problem
from shared.indexing import key_of, prefix, sortable
from shared.positions import format_positions
from shared.topology import Table

MAX_PAGE = 500
EXAMINED = 20_000  # rows a partition looks at for one page; a page of rarer rows is short, and its cursor goes on

Place = tuple[bytes, bytes]
"""Where a row is in a list's order: its sortable value and its key."""


def encode_cursor(place: Place) -> str:
    return base64.urlsafe_b64encode(json.dumps([part.hex() for part in place]).encode()).decode()


def decode_cursor(text: str) -> Place:
    """What `encode_cursor` made. Raises ValueError."""
    try:
        value, key = json.loads(base64.urlsafe_b64decode(text.encode()))
        return bytes.fromhex(value), bytes.fromhex(key)
    except (ValueError, TypeError) as error:
        raise ValueError("not a cursor of this list") from error


def _checked_cursor(text: str | None) -> str | None:
    if text is not None:
        decode_cursor(text)
    return text


class ListQuery(BaseModel):
    """What every list takes. A subclass adds a field F, or F_min and F_max, for each index F it filters by."""

    model_config = ConfigDict(extra="forbid")

    order: str = "id"
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50
    cursor: Annotated[str | None, AfterValidator(_checked_cursor), Field(max_length=2000)] = None
    complete: Annotated[bool, Field(description="503 rather than a list that lacks a partition")] = False
    partitions: Annotated[str | None, Field(pattern=r"^\d+(,\d+)*$", description="only these")] = None


class Covered(BaseModel):
    """One partition's part in a list."""

    partition: int
    status: Literal["fresh", "stale", "missing"]
    lag: int | None = None
    position: str | None = None


class Page(BaseModel):
    """items in order; cursor: for the next page, null at the end."""

    items: list[dict[str, Any]]
    cursor: str | None
    partitions: list[Covered]


RESPONSES: dict[int | str, dict[str, Any]] = {
    422: {"model": Problem, "description": "Not a valid request"},
    503: {"model": Problem, "description": "complete=true, and a partition is missing"},
}


class Found(NamedTuple):
    place: Place
    body: dict[str, Any]


class Part(NamedTuple):
    """What one partition found. frontier: how far it looked when it stopped early, None when it is through."""

    found: list[Found]
    frontier: Place | None


class Lists:
    """Lists of one table."""

    def __init__(self, node: Node, peers: Peers, table: Table, present: Callable[[str, Row[Any]], BaseModel | None]):
        self._node = node
        self._peers = peers
        self._table = table
        self._present = present

    async def page(self, request: Request, query: ListQuery) -> Response:
        wanted = self._wanted(query)
        here = [partition for partition in wanted if self._node.serves(self._table, partition)]
        covered = {partition: self._covered(partition) for partition in here}
        parts = await asyncio.to_thread(lambda: [self._part(partition, query) for partition in here])
        if HOP_HEADER in request.headers:
            return JSONResponse({"parts": [_packed(part) for part in parts], "covered": _dumped(covered.values())})
        for answer in await self._ask_others(request, query, set(wanted) - set(here)):
            parts += [_unpacked(part) for part in answer["parts"]]
            covered |= {each["partition"]: Covered(**each) for each in answer["covered"]}
        missing = set(wanted) - covered.keys()
        if missing and query.complete:
            raise NotReady(f"partitions {sorted(missing)} of {self._table.name} have no owner that answers")
        covered |= {partition: Covered(partition=partition, status="missing") for partition in missing}
        found, cursor = _merged(parts, query)
        return JSONResponse(
            {
                "items": [each.body for each in found],
                "cursor": encode_cursor(cursor) if cursor else None,
                "partitions": _dumped(covered[partition] for partition in sorted(covered)),
            }
        )

    def _wanted(self, query: ListQuery) -> list[int]:
        every = range(self._node.topology.partitions)
        return [int(p) for p in query.partitions.split(",") if int(p) in every] if query.partitions else list(every)

    def _covered(self, partition: int) -> Covered:
        position = {(self._table.source.name, partition): self._node.position(self._table, partition)}
        return Covered(partition=partition, status="fresh", lag=0, position=format_positions(position))

    async def _ask_others(self, request: Request, query: ListQuery, partitions: set[int]) -> list[dict[str, Any]]:
        by_owner: dict[str, list[str]] = defaultdict(list)
        for partition in sorted(partitions):
            owner = self._node.owner(self._table, partition)
            if owner is not None and owner != self._node.settings.url:
                by_owner[owner].append(str(partition))
        asked = query.model_dump(mode="json", exclude_none=True)
        answers = await asyncio.gather(
            *(
                self._peers.ask(owner, request.url.path, {**asked, "complete": "false", "partitions": ",".join(theirs)})
                for owner, theirs in by_owner.items()
            ),
            return_exceptions=True,
        )
        return [answer for answer in answers if isinstance(answer, dict)]

    def _part(self, partition: int, query: ListQuery) -> Part:
        found: list[Found] = []
        place: Place | None = None
        for examined, place in enumerate(self._places(partition, query), 1):
            body = self._matching(partition, place[1], query)
            if body is not None:
                found.append(Found(place, body))
            if len(found) == query.limit or examined == EXAMINED:
                return Part(found, place)
        return Part(found, None)

    def _places(self, partition: int, query: ListQuery) -> Iterator[Place]:
        """Places in the list's order, from the cursor on, as far as the order's own bounds reach."""
        after = decode_cursor(query.cursor) if query.cursor else None
        field, descending = query.order.removeprefix("-"), query.order.startswith("-")
        if field not in self._table.indexes:
            for key, _ in self._node.scan(self._table, partition, after[1] if after else b""):
                yield b"", key
            return
        low, high = _bounds(query, field)
        first = high if descending else low
        start = b""
        if after is not None:
            start = prefix(field) + after[0] + b"\x00" + after[1]
        elif first is not None:  # behind, or before, all entries of the bound's value
            start = prefix(field) + first + (b"\x00\xff" if descending else b"")
        for entry in self._node.keys_by(self._table, partition, field, start, descending):
            key = key_of(entry, field)
            value = entry[len(prefix(field)) : len(entry) - len(key) - 1]
            beyond = (low is not None and value < low) if descending else (high is not None and value > high)
            if beyond:
                return
            yield value, key

    def _matching(self, partition: int, key: bytes, query: ListQuery) -> dict[str, Any] | None:
        row = self._node.read(self._table, partition, key)
        if row is None:
            return None
        state = row.state.model_dump() if isinstance(row.state, BaseModel) else row.state
        for field in self._table.indexes:
            low, high = _bounds(query, field)
            value = sortable(state.get(field))
            if (low is not None and value < low) or (high is not None and value > high):
                return None
        body = self._present(key.decode(), row)
        return body.model_dump(mode="json") if body else None


def _bounds(query: ListQuery, field: str) -> tuple[bytes | None, bytes | None]:
    exactly = getattr(query, field, None)
    low = exactly if exactly is not None else getattr(query, f"{field}_min", None)
    high = exactly if exactly is not None else getattr(query, f"{field}_max", None)
    return (None if low is None else sortable(low), None if high is None else sortable(high))


def _merged(parts: list[Part], query: ListQuery) -> tuple[list[Found], Place | None]:
    """The first items of all parts, and where the next page begins.

    A part that stopped early may have more right behind its frontier, so the page ends at the nearest frontier.
    """
    descending = query.order.startswith("-")
    frontiers = sorted((part.frontier for part in parts if part.frontier), reverse=descending)
    found = sorted((each for part in parts for each in part.found), key=lambda each: each.place, reverse=descending)
    if frontiers:
        nearest = frontiers[0]
        found = [each for each in found if (each.place >= nearest if descending else each.place <= nearest)]
    page = found[: query.limit]
    if len(found) > query.limit:
        return page, page[-1].place
    return page, frontiers[0] if frontiers else None


def _packed(part: Part) -> dict[str, Any]:
    return {
        "found": [[encode_cursor(each.place), each.body] for each in part.found],
        "frontier": encode_cursor(part.frontier) if part.frontier else None,
    }


def _unpacked(part: dict[str, Any]) -> Part:
    found = [Found(decode_cursor(place), body) for place, body in part["found"]]
    return Part(found, decode_cursor(part["frontier"]) if part["frontier"] else None)


def _dumped(covered: Iterable[Covered]) -> list[dict[str, Any]]:
    return [each.model_dump() for each in covered]
