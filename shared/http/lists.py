"""Lists over all partitions: every owner is asked, and the answer says which partitions it covers, and how fresh.

Each partition walks one index (or the keys) in the list's order and stops at the limit, so neither memory nor time
grows with the table. A cursor is a place in that order, not in a worker: it survives rebalances.
"""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args, get_origin

import structlog
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import from_json, to_jsonable_python

from shared.domain.errors import NotReady
from shared.http.auth import OwnRows, own_rows
from shared.http.node import Node, Present, as_json, view_sealer
from shared.http.peers import Peers, is_hop
from shared.http.problems import Problem, not_valid
from shared.runtime.positions import format_positions
from shared.tables.indexing import NOT_NULL, entry_at, indexed, kinds, place_of, prefix, sortable
from shared.topology.topics import Table

log = structlog.get_logger(__name__)

MAX_PAGE = 500
MAX_CURSOR = 6000  # holds an indexed text of 4 KB; with `partitions`, a peer's request stays below MAX_TARGET_BYTES
# Rows that a worker examines for one page, in all its partitions: within the time that a peer waits for it. If few of
# them match, the page is short and its cursor goes on.
EXAMINED = 20_000
UNMET = 200  # rows that a list examines before it asks the indexes whether few rows can meet its filters
FEW = 1_000  # then it reads only those

Place = tuple[bytes, bytes]
"""Where a row is in a list's order: its sortable value and its key."""


def encode_cursor(order: str, place: Place) -> str:
    return base64.urlsafe_b64encode(b"\x00".join((order.encode(), *place))).decode()


def decode_cursor(text: str) -> tuple[str, Place]:
    """The order and place that `encode_cursor` was given. Raises ValueError."""
    try:
        order, _, place = base64.b64decode(text.encode(), altchars=b"-_", validate=True).partition(b"\x00")
        value, key = place.rsplit(b"\x00", 1)  # a key has no control characters
        return order.decode(), (value, key)
    except ValueError as error:
        raise ValueError("not a cursor of a list") from error


def _packed_place(place: Place) -> list[str]:
    return [part.hex() for part in place]


def _unpacked_place(packed: list[str]) -> Place:
    value, key = packed
    return bytes.fromhex(value), bytes.fromhex(key)


class ListQuery(BaseModel):
    """The parameters of every list. For each index F that it filters by, a subclass adds a field F, or F_min and F_max,
    of the type that F has in the state; only F_min and F_max where F is the name of a field below.

    order: `id`, upwards only. A subclass may name more in a Literal: an index F gives `F` and `-F`.
    """

    model_config = ConfigDict(extra="forbid")

    order: Annotated[str, Field(pattern="^id$")] = "id"
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50
    cursor: Annotated[str | None, Field(max_length=MAX_CURSOR, description="of the page before, in the same order")] = (
        None
    )
    complete: Annotated[bool, Field(description="503 instead of a list that lacks a partition")] = False
    max_lag: Annotated[
        int | None, Field(ge=0, description="a standby at most so many records behind may answer for a missing owner")
    ] = None
    partitions: Annotated[
        str | None, Field(pattern=r"^\d{1,6}(,\d{1,6})*$", max_length=2000, description="only these partitions")
    ] = None

    _own: OwnRows | None = PrivateAttr(None)  # no request can set it

    @model_validator(mode="after")
    def _check_cursor(self) -> Self:
        if self.cursor is not None and decode_cursor(self.cursor)[0] != self.order:
            raise ValueError("the cursor belongs to a list in another order")
        return self

    @property
    def after(self) -> Place | None:
        """Where the previous page ended."""
        return decode_cursor(self.cursor)[1] if self.cursor else None


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
    503: {
        "model": Problem,
        "description": "complete=true, and a partition is missing; or personal text can't be decrypted",
    },
}


class Found(NamedTuple):
    place: Place
    body: dict[str, Any]


class Part(NamedTuple):
    """What one partition found. frontier: where it stopped early; None when it reached the end."""

    covered: Covered
    found: list[Found]
    frontier: Place | None


Parts = dict[int, Part]
"""By partition."""


class _Held(NamedTuple):
    """A part whose views are still encrypted."""

    covered: Covered
    found: list[tuple[Place, BaseModel]]
    frontier: Place | None


Bound = tuple[bytes | None, bytes | None]
"""The lowest and the highest sortable value wanted; None: no bound."""

Bounds = Mapping[str, Bound]
"""By indexed field."""


class Lists:
    """Lists of one table."""

    def __init__(self, node: Node, peers: Peers, table: Table, present: Present, query: type[ListQuery]) -> None:
        """query: the parameters that the lists take.

        Raises ValueError for a filter or an order without an index, or a filter of another type than its index.
        """
        _check_filters(query, table, node.state_type(table))
        _check_orders(query, table)
        self._query = query
        self._node = node
        self._peers = peers
        self._table = table
        self._present = present
        self._sealer = view_sealer(node, present)

    async def page(self, request: Request, query: ListQuery) -> Response:
        """The items of all owners, in order; for a request that another worker passed on, only those held here."""
        if type(query) is not self._query:
            other = type(query).__name__
            checked = f"Lists of {self._table.name} takes {self._query.__name__}"
            raise TypeError(f"{checked}, not {other}; fix: give its constructor {other}")
        with request.app.state.turns.turn(request):
            return await self._page(request, query)

    async def _page(self, request: Request, query: ListQuery) -> Response:
        query._own = own_rows(request)
        wanted = self._wanted(query)
        parts = await self._owned(wanted, query)
        if is_hop(request):
            parts |= await self._stale(wanted - parts.keys(), query)
            return JSONResponse({"parts": [_packed(part) for part in parts.values()]})
        parts |= await self._from_owners(request, wanted - parts.keys(), query)
        if query.max_lag is not None:
            parts |= await self._stale(wanted - parts.keys(), query)
            parts |= await self._from_standbys(request, wanted - parts.keys(), query)
        missing = wanted - parts.keys()
        if missing and query.complete:
            raise NotReady(f"partitions {sorted(missing)} of {self._table.name} have no owner that answers")
        found, cursor = _merged(parts.values(), query)
        covered = {partition: part.covered for partition, part in parts.items()}
        covered |= {partition: Covered(partition=partition, status="missing") for partition in missing}
        return JSONResponse(
            {
                "items": [each.body for each in found],
                "cursor": encode_cursor(query.order, cursor) if cursor else None,
                "partitions": [covered[partition].model_dump() for partition in sorted(covered)],
            }
        )

    def _wanted(self, query: ListQuery) -> set[int]:
        every = set(range(self._node.topology.partitions))
        wanted = set(map(int, query.partitions.split(","))) if query.partitions else every
        if not wanted <= every:
            raise not_valid("query", "partitions", f"there are partitions 0 to {len(every) - 1}")
        return wanted

    async def _owned(self, partitions: set[int], query: ListQuery) -> Parts:
        """The parts of the partitions that are owned here from the first row read to the last."""
        served = [p for p in partitions if self._node.serves(self._table, p)]
        fresh = {p: Covered(partition=p, status="fresh", lag=0, position=self._position(p)) for p in served}
        parts = await self._read(fresh.values(), query)
        return {p: part for p, part in parts.items() if self._node.serves(self._table, p)}

    async def _stale(self, partitions: set[int], query: ListQuery) -> Parts:
        """The parts of the partitions of which a standby here is fresh enough."""
        most = query.max_lag
        if most is None:
            return {}
        lags = await asyncio.gather(*(self._node.standby_lag(self._table, p) for p in partitions))
        enough = [
            Covered(partition=p, status="stale", lag=lag)
            for p, lag in zip(partitions, lags, strict=True)
            if lag is not None and lag <= most
        ]
        return await self._read(enough, query)

    def _position(self, partition: int) -> str:
        """Taken before the rows are read, so that they are never older."""
        return format_positions({(self._table.source.name, partition): self._node.position(self._table, partition)})

    async def _from_owners(self, request: Request, partitions: set[int], query: ListQuery) -> Parts:
        by_owner: dict[str, set[int]] = defaultdict(set)
        for partition in partitions:
            owner = self._node.owner(self._table, partition)
            if owner is not None and owner != self._node.settings.url:
                by_owner[owner].add(partition)
        return await self._ask(request, by_owner, query.model_copy(update={"max_lag": None}))

    async def _from_standbys(self, request: Request, partitions: set[int], query: ListQuery) -> Parts:
        others = self._node.members() - {self._node.settings.url} if partitions else ()
        return await self._ask(request, dict.fromkeys(others, partitions), query)

    async def _ask(self, request: Request, wanted: Mapping[str, set[int]], query: ListQuery) -> Parts:
        """The parts that the asked workers have; one that gives no readable answer has none."""

        def asked(theirs: set[int]) -> dict[str, Any]:
            partitions = ",".join(map(str, sorted(theirs)))
            return _parameters(query.model_copy(update={"complete": False, "partitions": partitions}))

        answers = await asyncio.gather(
            *(
                self._peers.ask(request, url, request.url.path, asked(theirs), _unpacked)
                for url, theirs in wanted.items()
            ),
            return_exceptions=True,
        )
        parts: Parts = {}
        for theirs, answer in zip(wanted.values(), answers, strict=True):
            if isinstance(answer, NotReady):
                log.info("a list lacks a worker's partitions", reason=str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                parts |= {partition: part for partition, part in answer.items() if partition in theirs}
        return parts

    async def _read(self, partitions: Collection[Covered], query: ListQuery) -> Parts:
        """Leaves out a partition that moves away meanwhile. Raises NotReady while personal texts can't be decrypted."""
        held = await asyncio.to_thread(self._held, partitions, query)
        shown = await self._sealer.unsealed([view for part in held for _, view in part.found])
        return await asyncio.to_thread(_as_parts, held, shown)

    def _held(self, partitions: Collection[Covered], query: ListQuery) -> list[_Held]:
        held: list[_Held] = []
        share = max(query.limit, EXAMINED // max(1, len(partitions)))  # a list without filters has full pages
        for covered in partitions:
            with suppress(NotReady):
                held.append(_Held(covered, *self._found(covered.partition, query, share)))
        return held

    def _found(self, partition: int, query: ListQuery, most: int) -> tuple[list[tuple[Place, BaseModel]], Place | None]:
        """The matching rows of the first `most` as views, and where the next page goes on, unless this is the last."""
        found: list[tuple[Place, BaseModel]] = []
        bounds = _bounds(query, self._table.indexes)
        for examined, place in enumerate(self._places(partition, query, bounds), 1):
            view = self._matching(partition, place[1], query, bounds)
            if view is not None:
                found.append((place, view))
            if len(found) == query.limit or examined == most:
                return found, place
        return found, None

    def _places(self, partition: int, query: ListQuery, bounds: Bounds) -> Iterator[Place]:
        """Places in the list's order, from the cursor on; when many did not match, only of rows that can."""
        for number, place in enumerate(self._walked(partition, query, bounds), 1):
            yield place
            if number == UNMET and (few := self._few(partition, query, bounds, place)) is not None:
                yield from few
                return

    def _few(self, partition: int, query: ListQuery, bounds: Bounds, after: Place) -> list[Place] | None:
        """The places behind `after` of all rows within one of the bounds, if there are few."""
        descending = query.order.startswith("-")
        for field, bound in _narrowing(query, bounds, self._table.indexes):
            within = self._between(partition, field, bound, prefix(field) + (bound[0] or b""))
            keys = [key for _, key in islice(within, FEW + 1)]
            if len(keys) <= FEW:
                places = [place for key in keys if (place := self._place(partition, key, query)) is not None]
                return sorted((p for p in places if (p < after if descending else p > after)), reverse=descending)
        return None

    def _place(self, partition: int, key: bytes, query: ListQuery) -> Place | None:
        """Where the row is in the list's order; None if it is deleted."""
        if query.order == "id":
            return b"", key
        row = self._node.read(self._table, partition, key)
        field = query.order.removeprefix("-")
        return None if row is None else (sortable(indexed(to_jsonable_python(row.state), field)), key)

    def _walked(self, partition: int, query: ListQuery, bounds: Bounds) -> Iterator[Place]:
        """Places in the list's order, from the cursor on, as far as the order's own bounds reach."""
        after = query.after
        if query.order == "id":
            for key in self._keys(partition, query, bounds, after[1] if after else b""):
                yield b"", key
            return
        field, descending = query.order.removeprefix("-"), query.order.startswith("-")
        low, high = bounds.get(field, (None, None))
        first = high if descending else low
        start = b""
        if after is not None:
            start = entry_at(field, *after)
        elif first is not None:  # after all entries of the bound's value, or before them
            start = prefix(field) + first + (b"\x00\xff" if descending else b"")
        yield from self._between(partition, field, (low, high), start, descending)

    def _between(
        self, partition: int, field: str, bound: Bound, start: bytes, descending: bool = False
    ) -> Iterator[Place]:
        """Places by the index of `field`, from behind `start` to the bound at the other end."""
        low, high = bound
        for entry in self._node.keys_by(self._table, partition, field, start, descending):
            value, key = place_of(entry, field)
            beyond = (low is not None and value < low) if descending else (high is not None and value > high)
            if beyond:
                return
            yield value, key

    def _keys(self, partition: int, query: ListQuery, bounds: Bounds, after: bytes) -> Iterator[bytes]:
        """Keys in order; of an index that has the one value asked for, only those: under a value, it sorts by key."""
        equal = _equal(query, bounds, self._table.indexes)
        if equal is None:
            yield from self._node.keys(self._table, partition, after)
            return
        field, wanted = equal
        start = entry_at(field, wanted, after)
        yield from (key for _, key in self._between(partition, field, (wanted, wanted), start))

    def _matching(self, partition: int, key: bytes, query: ListQuery, bounds: Bounds) -> BaseModel | None:
        row = self._node.read(self._table, partition, key)
        if row is None or (query._own is not None and not query._own.has(row.state)):
            return None
        state = to_jsonable_python(row.state) if bounds else None
        for field, (low, high) in bounds.items():
            value = sortable(indexed(state, field))
            if (low is not None and value < low) or (high is not None and value > high):
                return None
        return self._present(key.decode(), row)


def _check_filters(query: type[ListQuery], table: Table, state_type: Any) -> None:
    """An index sorts by type first, so values of another type match none of its rows, or all."""
    for name in query.model_fields.keys() - ListQuery.model_fields.keys():
        indexed = {name, name.removesuffix("_min"), name.removesuffix("_max")} & {*table.indexes}
        if not indexed:
            field = name.removesuffix("_min").removesuffix("_max")
            raise ValueError(
                f"{query.__name__}.{name}: the table {table.name} has no index {field!r}; "
                f"fix: add it to indexes in topology.py"
            )
        asked = kinds(query, name, by_alias=False) - {"null"}
        for field in indexed:
            held = kinds(state_type, field)
            if asked.isdisjoint(held):
                raise ValueError(
                    f"{query.__name__}.{name} is {_either(asked)} in JSON, {field!r} in the table {table.name} "
                    f"{_either(held)}; fix: give it the type of the state's field"
                )


def _either(types: set[str]) -> str:
    return " or ".join(sorted(types))


def _check_orders(query: type[ListQuery], table: Table) -> None:
    order, by_id = query.model_fields["order"], ListQuery.model_fields["order"]
    if get_origin(order.annotation) is not Literal and order.metadata != by_id.metadata:
        raise ValueError(f'{query.__name__}.order is not a Literal; fix: name its orders, such as Literal["id"]')
    for name in get_args(order.annotation):
        if name == "-id":
            raise ValueError(f"{query.__name__}.order: {name!r} is none, ids go upwards only; fix: leave it out")
        if name != "id" and name.removeprefix("-") not in table.indexes:
            raise ValueError(
                f"{query.__name__}.order: the table {table.name} has no index for {name!r}; "
                f"fix: add it to indexes in topology.py"
            )


def _parameters(query: ListQuery) -> dict[str, Any]:
    """The query as a request has it."""
    wishes = query.model_dump(mode="json", by_alias=False, exclude_none=True)
    texts = {name: str(wish).lower() if isinstance(wish, bool) else wish for name, wish in wishes.items()}
    return {_parameter(name, type(query)): text for name, text in texts.items()}


def _parameter(name: str, query: type[ListQuery]) -> str:
    """What a request calls the field."""
    alias = query.model_fields[name].validation_alias
    if isinstance(alias, AliasChoices):
        alias = alias.choices[0]
    return alias if isinstance(alias, str) else name


def _bounds(query: ListQuery, fields: Iterable[str]) -> Bounds:
    # as JSON: a day is text in an index
    asked = query.model_dump(mode="json", by_alias=False, exclude_none=True, exclude=set(ListQuery.model_fields))

    def end(field: str, which: str) -> bytes | None:
        value = asked.get(field, asked.get(f"{field}_{which}"))
        return None if value is None else sortable(value)

    ends = {field: (end(field, "min"), end(field, "max")) for field in fields}
    # null sorts before every value, and is neither below a bound nor above one
    return {field: (low or NOT_NULL, high) for field, (low, high) in ends.items() if low or high}


def _equal(query: ListQuery, bounds: Bounds, indexes: Collection[str]) -> tuple[str, bytes] | None:
    """An indexed field, and the one sortable value of it that all rows of the list have."""
    narrowing = _narrowing(query, bounds, indexes)
    return next(((field, low) for field, (low, high) in narrowing if low is not None and low == high), None)


def _narrowing(query: ListQuery, bounds: Bounds, indexes: Collection[str]) -> list[tuple[str, Bound]]:
    """The bounds, behind that of the rows to which the caller is confined, if an index has those."""
    own = query._own
    confined = [(own.field, (sortable(own.owner),) * 2)] if own is not None and own.field in indexes else []
    return [*confined, *bounds.items()]


def _merged(parts: Collection[Part], query: ListQuery) -> tuple[list[Found], Place | None]:
    """The first items of all parts, and where the next page begins.

    A part that stopped early may have more right after its frontier, so the page ends at the nearest frontier.
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


def _as_parts(held: Iterable[_Held], views: Iterable[BaseModel]) -> Parts:
    """views: what is shown of theirs, in the same order."""
    bodies = (from_json(as_json(view)) for view in views)
    return {
        covered.partition: Part(covered, [Found(place, next(bodies)) for place, _ in found], frontier)
        for covered, found, frontier in held
    }


def _packed(part: Part) -> dict[str, Any]:
    return {
        "covered": part.covered.model_dump(),
        "found": [[_packed_place(each.place), each.body] for each in part.found],
        "frontier": _packed_place(part.frontier) if part.frontier else None,
    }


def _unpacked(answer: dict[str, Any]) -> Parts:
    parts = map(_unpacked_part, answer["parts"])
    return {part.covered.partition: part for part in parts}


def _unpacked_part(part: dict[str, Any]) -> Part:
    found = [Found(_unpacked_place(place), body) for place, body in part["found"]]
    frontier = _unpacked_place(part["frontier"]) if part["frontier"] else None
    return Part(Covered(**part["covered"]), found, frontier)
