"""Lists over all partitions: every owner is asked, and the answer says which partitions it covers, and how fresh.

Each worker reads its partitions in the list's order and stops at the limit, so neither memory nor time grows with the
table. A cursor is a place in that order, not in a worker or an index: it survives rebalances and releases.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args, get_origin

import structlog
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import from_json, to_jsonable_python

from shared.domain.errors import NotReady
from shared.http.auth import OwnRows, own_rows
from shared.http.cursors import Seal, decode_cursor, encode_cursor, is_sealed
from shared.http.node import Node, Present, as_json, of_all, positions_of, view_sealer
from shared.http.peers import Peers, is_hop
from shared.http.problems import Problem, not_valid
from shared.http.scans import Bounds, Scan, SortKey, Wanted
from shared.http.versions import other_version
from shared.runtime.positions import format_positions
from shared.tables.indexing import NOT_NULL, fields_of, indexed, kinds, sortable
from shared.topology.topics import Table

log = structlog.get_logger(__name__)

MAX_PAGE = 500
MAX_CURSOR = 6000  # holds an indexed text of 4 KB; with `partitions`, a peer's request stays below MAX_TARGET_BYTES
PATIENCE_S = 1.0  # in which workers read on for a page that would be empty and not the last
_WORSE = ("fresh", "stale", "missing")


def _packed_place(place: SortKey) -> list[str]:
    return [field.hex() for field in place]


def _unpacked_place(packed: list[str]) -> SortKey:
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
        if self.cursor is not None and not is_sealed(self.cursor):  # that is checked when it is opened
            _check_cursor(self.cursor, self.order)
        return self

    @property
    def after(self) -> SortKey | None:
        """Where the previous page ended."""
        return decode_cursor(self.cursor)[1] if self.cursor else None


class Scanned(BaseModel):
    """What was read for a page. by: the indexes, `id` for all rows by their ids, the fields of one with commas between.

    entries: that were looked at, also of indexes that were then not read; a look-up of one that is known is none.
    """

    by: list[str]
    entries: int
    rows: int


class Covered(BaseModel):
    """One partition's share of a list. scanned: null if the caller sees only its own rows."""

    partition: int
    status: Literal["fresh", "stale", "missing"]
    lag: int | None = None
    position: str | None = None
    scanned: Scanned | None = None


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
    place: SortKey
    body: dict[str, Any]


class Share(NamedTuple):
    """What one partition found. frontier: where it stopped early; None when it reached the end."""

    covered: Covered
    found: list[Found]
    frontier: SortKey | None


Shares = dict[int, Share]
"""By partition."""


class _Held(NamedTuple):
    """A share whose views are still encrypted."""

    covered: Covered
    found: list[tuple[SortKey, BaseModel]]
    frontier: SortKey | None


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
        self._seal = Seal(node.settings.peer_secret.get_secret_value())

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
        query = self._opened(query, is_hop(request))
        wanted = self._wanted(query)
        if is_hop(request):
            shares = await self._owned(wanted, query)
            shares |= await self._stale(wanted - shares.keys(), query)
            return JSONResponse({"parts": [_packed(share) for share in shares.values()]})
        is_declared = self._table in self._node.topology.tables  # those of the engine are of each version
        version = other_version(request, self._node) if is_declared else None
        deadline, covered = asyncio.get_running_loop().time() + PATIENCE_S, dict[int, Covered]()
        while True:
            shares = await self._shares(request, wanted, query, version)
            found, place = _merged(shares.values(), query)
            cursor = encode_cursor(query.order, place) if place else None
            covered = _together(covered, {p: _covered(p, shares) for p in wanted})
            if found or cursor is None or asyncio.get_running_loop().time() >= deadline:
                break
            query = query.model_copy(update={"cursor": cursor})
        if cursor is not None and query._own is not None:
            cursor = self._seal.sealed(cursor)
        partitions = [covered[partition].model_dump() for partition in sorted(covered)]
        return JSONResponse({"items": [each.body for each in found], "cursor": cursor, "partitions": partitions})

    def _opened(self, query: ListQuery, is_hop: bool) -> ListQuery:
        """With a cursor as workers send it to each other; they seal it for a caller that sees only its own rows."""
        must_be_sealed = query._own is not None and not is_hop
        if query.cursor is None or not (must_be_sealed or is_sealed(query.cursor)):
            return query
        try:
            cursor = self._seal.opened(query.cursor)
            _check_cursor(cursor, query.order)
        except ValueError as error:
            raise not_valid("query", "cursor", str(error)) from error
        return query.model_copy(update={"cursor": cursor})

    async def _shares(self, request: Request, wanted: set[int], query: ListQuery, version: int | None) -> Shares:
        """Of all owners, or of standbys in their place; of another version, of its owners.

        Raises NotReady for a list that has to be complete.
        """
        shares = {} if version is not None else await self._owned(wanted, query)
        shares |= await self._from_owners(request, wanted - shares.keys(), query, version)
        if query.max_lag is not None and version is None:
            shares |= await self._stale(wanted - shares.keys(), query)
            shares |= await self._from_standbys(request, wanted - shares.keys(), query)
        missing = wanted - shares.keys()
        if missing and query.complete:
            raise NotReady(f"partitions {sorted(missing)} of {self._table.name} have no owner that answers")
        return shares

    def _wanted(self, query: ListQuery) -> set[int]:
        every = set(range(self._node.topology.partitions))
        wanted = set(map(int, query.partitions.split(","))) if query.partitions else {*of_all(self._node, self._table)}
        if not wanted <= every:
            raise not_valid("query", "partitions", f"there are partitions 0 to {len(every) - 1}")
        return wanted

    async def _owned(self, partitions: set[int], query: ListQuery) -> Shares:
        """The shares of the partitions that are owned here from the first row read to the last."""
        served = [p for p in partitions if self._node.serves(self._table, p)]
        fresh = {p: Covered(partition=p, status="fresh", lag=0, position=self._position(p)) for p in served}
        shares = await self._read(fresh.values(), query)
        return {p: share for p, share in shares.items() if self._node.serves(self._table, p)}

    async def _stale(self, partitions: set[int], query: ListQuery) -> Shares:
        """The shares of the partitions of which a standby here is fresh enough."""
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
        return format_positions(positions_of(self._node, self._table, partition))

    async def _from_owners(
        self, request: Request, partitions: set[int], query: ListQuery, version: int | None
    ) -> Shares:
        by_owner: dict[str, set[int]] = defaultdict(set)
        for partition in partitions:
            owner = self._owner(partition, version)
            if owner is not None and owner != self._node.settings.url:
                by_owner[owner].add(partition)
        return await self._ask(request, by_owner, query.model_copy(update={"max_lag": None}))

    def _owner(self, partition: int, version: int | None) -> str | None:
        if version is None or self._node.routes is None:
            return self._node.owner(self._table, partition)
        return self._node.routes.owner(version, partition)

    async def _from_standbys(self, request: Request, partitions: set[int], query: ListQuery) -> Shares:
        others = self._node.members() - {self._node.settings.url} if partitions else ()
        return await self._ask(request, dict.fromkeys(others, partitions), query)

    async def _ask(self, request: Request, wanted: Mapping[str, set[int]], query: ListQuery) -> Shares:
        """The shares that the asked workers have; one that gives no readable answer has none."""

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
        shares: Shares = {}
        for theirs, answer in zip(wanted.values(), answers, strict=True):
            if isinstance(answer, NotReady):
                log.info("a list lacks a worker's partitions", reason=str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                shares |= {partition: share for partition, share in answer.items() if partition in theirs}
        return shares

    async def _read(self, partitions: Collection[Covered], query: ListQuery) -> Shares:
        """Leaves out a partition that moves away meanwhile. Raises NotReady while personal texts can't be decrypted."""
        held = await asyncio.to_thread(self._held, partitions, query)
        shown = await self._sealer.unsealed([view for share in held for _, view in share.found])
        return await asyncio.to_thread(_as_shares, held, shown)

    def _held(self, partitions: Collection[Covered], query: ListQuery) -> list[_Held]:
        bounds = _bounds(query, self._table)
        scan = Scan(
            self._node, self._table, {each.partition for each in partitions}, _wanted(query, bounds, self._table)
        )
        limit = query.limit if query._own is None else query.limit + 1  # that others' rows follow, it may not know
        hits, frontier = scan.run(limit, lambda partition, key: self._matching(partition, key, query, bounds))
        found: dict[int, list[tuple[SortKey, BaseModel]]] = defaultdict(list)
        for place, partition, view in hits:
            found[partition].append((place, view))
        return [
            _Held(_told(each, scan, query), found[each.partition], frontier)
            for each in partitions
            if each.partition not in scan.lost
        ]

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


def _check_cursor(cursor: str, order: str) -> None:
    if decode_cursor(cursor)[0] != order:
        raise ValueError("the cursor belongs to a list in another order")


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
    asked = query.model_dump(mode="json", by_alias=False, exclude_none=True)
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in asked.items()}
    return {_parameter(name, type(query)): text for name, text in texts.items()}


def _parameter(name: str, query: type[ListQuery]) -> str:
    """What a request calls the field."""
    alias = query.model_fields[name].validation_alias
    if isinstance(alias, AliasChoices):
        alias = alias.choices[0]
    return alias if isinstance(alias, str) else name


def _bounds(query: ListQuery, table: Table) -> Bounds:
    # as JSON: a day is text in an index
    asked = query.model_dump(mode="json", by_alias=False, exclude_none=True, exclude=set(ListQuery.model_fields))

    def end(field: str, which: str) -> bytes | None:
        value = asked.get(field, asked.get(f"{field}_{which}"))
        return None if value is None else sortable(value)

    ends = {field: (end(field, "min"), end(field, "max")) for field in table.indexes if isinstance(field, str)}
    # null sorts before every value, and is neither below a bound nor above one
    return {field: (low or NOT_NULL, high) for field, (low, high) in ends.items() if low or high}


def _wanted(query: ListQuery, bounds: Bounds, table: Table) -> Wanted:
    """Bounded by the rows to which the caller is confined, too, if an index has those."""
    order = None if query.order == "id" else query.order.removeprefix("-")
    own = query._own
    if own is not None and any(own.field in fields_of(index) for index in table.indexes):
        low, high = bounds.get(own.field, (None, None))
        its = sortable(own.owner)
        bounds = {**bounds, own.field: (max(low or its, its), min(high or its, its))}
    return Wanted(order, query.order.startswith("-"), query.after, bounds)


def _told(covered: Covered, scan: Scan, query: ListQuery) -> Covered:
    """With what was read for it, unless the caller may not know how many rows others have."""
    if query._own is not None:
        return covered
    read = scan.read_of(covered.partition)
    return covered.model_copy(update={"scanned": Scanned(by=read.by, entries=read.entries, rows=read.rows)})


def _covered(partition: int, shares: Shares) -> Covered:
    return shares[partition].covered if partition in shares else Covered(partition=partition, status="missing")


def _together(before: Mapping[int, Covered], after: Mapping[int, Covered]) -> dict[int, Covered]:
    """What is covered by two readings of which one goes on where the other ended: at each partition, the worse."""
    return {p: _worse(before[p], covered) if p in before else covered for p, covered in after.items()}


def _worse(before: Covered, after: Covered) -> Covered:
    worse = max(before, after, key=lambda each: (_WORSE.index(each.status), each.lag or 0))
    read = [each.scanned for each in (before, after) if each.scanned is not None]
    if not read:
        return worse
    by = dict.fromkeys(name for each in read for name in each.by)
    entries, rows = sum(each.entries for each in read), sum(each.rows for each in read)
    return worse.model_copy(update={"scanned": Scanned(by=[*by], entries=entries, rows=rows)})


def _merged(shares: Collection[Share], query: ListQuery) -> tuple[list[Found], SortKey | None]:
    """The first items of all shares, and where the next page begins.

    A share that stopped early may have more right after its frontier, so the page ends at the nearest frontier.
    """
    descending = query.order.startswith("-")
    frontiers = sorted((share.frontier for share in shares if share.frontier), reverse=descending)
    found = sorted((each for share in shares for each in share.found), key=lambda each: each.place, reverse=descending)
    if frontiers:
        nearest = frontiers[0]
        found = [each for each in found if (each.place >= nearest if descending else each.place <= nearest)]
    page = found[: query.limit]
    if len(found) > query.limit:
        return page, page[-1].place
    return page, frontiers[0] if frontiers else None


def _as_shares(held: Iterable[_Held], views: Iterable[BaseModel]) -> Shares:
    """views: what is shown of theirs, in the same order."""
    bodies = (from_json(as_json(view)) for view in views)
    return {
        covered.partition: Share(covered, [Found(place, next(bodies)) for place, _ in found], frontier)
        for covered, found, frontier in held
    }


def _packed(share: Share) -> dict[str, Any]:
    return {
        "covered": share.covered.model_dump(),
        "found": [[_packed_place(each.place), each.body] for each in share.found],
        "frontier": _packed_place(share.frontier) if share.frontier else None,
    }


def _unpacked(answer: dict[str, Any]) -> Shares:
    shares = map(_unpacked_share, answer["parts"])
    return {share.covered.partition: share for share in shares}


def _unpacked_share(share: dict[str, Any]) -> Share:
    found = [Found(_unpacked_place(place), body) for place, body in share["found"]]
    frontier = _unpacked_place(share["frontier"]) if share["frontier"] else None
    return Share(Covered(**share["covered"]), found, frontier)
