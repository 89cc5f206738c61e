"""Materialised state over HTTP, by key, from any worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any
from zlib import crc32

from fastapi import Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import from_json

from shared.domain.errors import NotReady
from shared.domain.ids import check_aggregate_id
from shared.domain.row import Row
from shared.http.auth import own_rows
from shared.http.node import Node, Present, as_json, positions_of, view_sealer
from shared.http.peers import Peers
from shared.http.problems import Problem, problem
from shared.http.versions import VERSION_HEADER, other_version, owner_in
from shared.http.waiting import MAX_WAIT_S, while_connected
from shared.runtime.positions import POSITIONS, Place, format_positions, parse_positions
from shared.topology.topics import Table

RESPONSES: dict[int | str, dict[str, Any]] = {
    304: {"description": "If-None-Match names the current ETag"},
    404: {"model": Problem, "description": "Nothing has this id"},
    422: {"model": Problem, "description": "Not a valid request"},
    503: {"model": Problem, "description": "Not ready, or not yet at min_position; try again after Retry-After"},
}


def _checked_position(text: str | None) -> str | None:
    if text is not None:
        parse_positions(text)
    return text


MinPosition = Annotated[
    str | None,
    Field(description="an Onefold-Position; the answer is never older", max_length=2000, pattern=POSITIONS),
    AfterValidator(_checked_position),
]
Wait = Annotated[float, Field(ge=0, le=MAX_WAIT_S, description="seconds to wait for what is asked for")]


class Reading(BaseModel):
    """The query of a read: how fresh it must be, and what to wait for. A subclass adds its route's other parameters.

    min_position  an `Onefold-Position`: the answer includes all that it names.
    max_lag       a standby may answer that is at most so many records behind; None for the owner alone.
    until         `field:value`: wait until the field of the view has that value.
    wait          for how many seconds to wait for these at most.

    Requests without a query string share one instance.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_position: MinPosition = None
    max_lag: int | None = Field(None, ge=0, description="a standby may answer if it is at most so many records behind")
    until: str | None = Field(
        None, pattern=r"^[A-Za-z][A-Za-z0-9_.]*:[\s\S]{1,200}$", description="field:value to wait for"
    )
    wait: Wait = 0.0

    @property
    def by_standby(self) -> bool:
        """Whether a standby may answer. It knows no position and can't wait, so not with a position or `until`."""
        return self.max_lag is not None and self.min_position is None and self.until is None

    def allows(self, lag: int) -> bool:
        """Whether a standby so many records behind may answer."""
        return self.by_standby and self.max_lag is not None and lag <= self.max_lag


ReadingQuery = Annotated[Reading, Query()]


class Queries:
    """Answers reads of one table: from the row's owner, or from a standby that is recent enough.

    node       the worker that answers.
    peers      the other workers, of which one is asked that has the row.
    table      the table.
    present    (key, row) -> what is shown of the row; None to show nothing, as if there were no row.
    responses  what else a route may answer that does so, for OpenAPI.

    Raises SettingsError without the database of keys that personal text needs.
    """

    responses = RESPONSES

    def __init__(self, node: Node, peers: Peers, table: Table, present: Present) -> None:
        self._node = node
        self._peers = peers
        self._table = table
        self._present = present
        self._sealer = view_sealer(node, present)

    async def by_id(self, request: Request, aggregate_id: str, reading: Reading) -> Response:
        """The row, from its owner (this worker, or one hop away) or from a standby within `max_lag`."""
        key = check_aggregate_id(aggregate_id).encode()
        partition = self._node.partition(key)
        if (version := other_version(request, self._node, partition)) is not None:
            owner = owner_in(self._node.routes, version, partition)
            return await self._awaited(request, self._peers.forward(request, owner, reading.wait))
        if self._node.serves(self._table, partition):
            owned = self._owned(request, aggregate_id, partition, reading)
            return await (self._awaited(request, owned) if reading.wait else owned)
        lag = await self._node.standby_lag(self._table, partition) if reading.by_standby else None
        if lag is not None and reading.allows(lag):
            row = self._visible(request, partition, key)
            return await self._answer(request, aggregate_id, row, self._as_standby(partition, lag, row))
        return await self._awaited(request, self._elsewhere(request, partition, reading))

    @staticmethod
    def _awaited(request: Request, answer: Coroutine[Any, Any, Response]) -> Coroutine[Any, Any, Response]:
        return while_connected(request, answer, request.app.state.closing)

    async def _elsewhere(self, request: Request, partition: int, reading: Reading) -> Response:
        """The owner's answer; if it has none and the caller allows a lag, that of a worker with a standby."""
        owner = self._node.owner(self._table, partition)
        if not reading.by_standby:
            return await self._peers.forward(request, owner, reading.wait)
        for peer in (owner, *(self._node.members() - {owner, self._node.settings.url})):
            with suppress(NotReady):
                answer = await self._peers.forward(request, peer, reading.wait if peer == owner else 0.0)
                if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                    return answer
        raise NotReady(f"no owner and no standby within {reading.max_lag} records answers for this key")

    async def _owned(self, request: Request, aggregate_id: str, partition: int, reading: Reading) -> Response:
        deadline = asyncio.get_running_loop().time() + reading.wait
        await self._wait_for_position(partition, reading.min_position, deadline)
        until = {}
        if reading.until is not None:
            met = await self._meets(request, aggregate_id, partition, reading.until, deadline)
            until["Onefold-Until"] = "met" if met else "unmet"
        self._check_still_served(partition)
        row = self._visible(request, partition, aggregate_id.encode())
        headers = self._as_owner(partition) | until
        row = await self._as_wanted(request, aggregate_id, partition, row, reading, deadline)
        return await self._answer(request, aggregate_id, row, headers)

    def _visible(self, request: Request, partition: int, key: bytes) -> Row[Any] | None:
        """The row of `key`; None if there is none, or it is not the caller's."""
        row, own = self._node.read(self._table, partition, key), own_rows(request)
        return row if row is None or own is None or own.has(row.state) else None

    async def _as_wanted(
        self,
        request: Request,
        aggregate_id: str,
        partition: int,
        row: Row[Any] | None,
        reading: Reading,
        deadline: float,
    ) -> Row[Any] | None:
        """The current row; `shared.http.history.History` has past ones, too."""
        return row

    def _check_still_served(self, partition: int) -> None:
        """For after a wait, when the partition may have moved. Raises NotReady."""
        if not self._node.serves(self._table, partition):
            raise NotReady("the owner of this key has changed")

    async def _wait_for_position(self, partition: int, min_position: str | None, deadline: float) -> None:
        """Wait until rows here include `min_position`. Raises NotReady at the deadline."""
        if min_position is None:
            return
        wanted = parse_positions(min_position)

        def missing() -> list[str]:
            return [
                f"at offset {offset} of {place}, not yet at {wanted[place]}"
                for place, offset in positions_of(self._node, self._table, partition).items()
                if offset < wanted.get(place, -1)
            ]

        if not await self._wait_until(lambda: not missing(), partition, deadline):
            raise NotReady("; ".join(missing()))

    async def _wait_until(self, condition: Callable[[], bool], partition: int, deadline: float) -> bool:
        """Whether `condition` came true by the deadline; checked again after each commit."""
        try:
            async with asyncio.timeout_at(deadline):
                while not condition():
                    await self._node.progress()
                    self._check_still_served(partition)
        except TimeoutError:
            return condition()
        return True

    async def _meets(self, request: Request, aggregate_id: str, partition: int, until: str, deadline: float) -> bool:
        key = aggregate_id.encode()
        field, _, value = until.partition(":")
        with self._node.watch(self._table, key) as changed:
            try:
                async with asyncio.timeout_at(deadline):
                    while not self._has(aggregate_id, self._visible(request, partition, key), field, value):
                        changed.clear()
                        await changed.wait()
                        self._check_still_served(partition)
            except TimeoutError:
                return False
        return True

    def _has(self, aggregate_id: str, row: Row[Any] | None, field: str, value: str) -> bool:
        found: Any = self._shown(aggregate_id, row)
        for name in field.split("."):
            if not isinstance(found, dict) or name not in found:
                return False
            found = found[name]
        return value == (found if isinstance(found, str) else json.dumps(found))

    def _shown(self, aggregate_id: str, row: Row[Any] | None) -> dict[str, Any] | None:
        body = self._present(aggregate_id, row) if row else None
        return from_json(as_json(body)) if body else None

    async def _answer(
        self, request: Request, aggregate_id: str, row: Row[Any] | None, headers: dict[str, str]
    ) -> Response:
        body = self._present(aggregate_id, row) if row else None
        if row is None or body is None:
            return self._unknown(aggregate_id, headers)
        (body,) = await self._sealer.unsealed([body])
        shown = as_json(body)
        # the sequence is not enough: a reprocessed row, or a view of another day or release, has the same
        headers["ETag"] = f'"{row.sequence}-{crc32(shown):08x}"'
        if _is_unchanged(request, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        return Response(shown, media_type="application/json", headers=headers)

    def _as_owner(self, partition: int) -> dict[str, str]:
        positions = positions_of(self._node, self._table, partition)
        return self._headers(partition, 0, self._node.settings.url, positions)

    def _as_standby(self, partition: int, lag: int, row: Row[Any] | None) -> dict[str, str]:
        """A standby knows no position but the one in the row itself."""
        owner = self._node.owner(self._table, partition) or "unknown"
        offsets = {name: offset for name, (_, offset) in row.made_of.items()} if row else {}
        positions = {
            Place(each.source.name, partition): offsets.get(each.name, row.offset if row else -1)
            for each in self._table.folded
        }
        return self._headers(partition, lag, owner, positions)

    def _headers(self, partition: int, lag: int, owner: str, positions: Mapping[Place, int]) -> dict[str, str]:
        version = {} if self._node.routes is None else {VERSION_HEADER: str(self._node.topology.version)}
        return {
            "Onefold-Lag": str(lag),
            "Onefold-Partition": str(partition),
            "Onefold-Owner": owner,
            "Onefold-Position": format_positions(positions),
            **version,
        }

    @staticmethod
    def _unknown(aggregate_id: str, headers: dict[str, str]) -> Response:
        return problem(404, "not_found", f"nothing has the id {aggregate_id!r}", headers=headers)


def _is_unchanged(request: Request, etag: str) -> bool:
    """Whether If-None-Match names it: in a list, as a weak ETag (from a proxy that compresses), or as `*`."""
    named = ",".join(request.headers.getlist("if-none-match")).split(",")
    return not {etag, "*"}.isdisjoint(each.strip().removeprefix("W/") for each in named)
