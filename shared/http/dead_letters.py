"""Dead letters over HTTP: which records are parked and why, and an operator's retry or discard."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from shared.domain.row import Row
from shared.http.lists import RESPONSES, ListQuery, Lists, Page
from shared.http.node import Node
from shared.http.paths import Segment
from shared.http.peers import Peers
from shared.http.problems import Problem, problem
from shared.parking.parked import Parked, Wish, partition_of_id, processor_of_id

UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "Nothing is parked under this id"}}
NOT_DISCARDABLE: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "An event can't be left out of a history"}
}


class DeadLetter(BaseModel):
    """A parked key. offset, code, reason, attempts: of its first record; behind: how many records wait behind it."""

    id: str
    processor: str
    topic: str
    partition: int
    offset: int
    code: str
    reason: str
    attempts: int
    behind: int


class Discard(BaseModel):
    """offset: the one shown for the first record; if another record is first by now, nothing is dropped."""

    model_config = ConfigDict(extra="forbid", strict=True)

    offset: int
    reason: Annotated[str, Field(min_length=1, max_length=300)]


def letter_view(key: str, row: Row[Parked]) -> DeadLetter:
    parked = row.state
    return DeadLetter(id=key, **parked.model_dump(exclude={"behind", "pages", "paged"}), behind=parked.waiting)


def router(node: Node, peers: Peers) -> APIRouter:
    routes = APIRouter(prefix="/dead-letters", tags=["operations"])
    table, parking = node.topology.parked, node.topology.parking
    listed = Lists(node, peers, table, letter_view, ListQuery)

    @routes.get("", response_model=Page, responses=RESPONSES)
    async def list_dead_letters(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
        """Everything parked in this service."""
        return await listed.page(request, query)

    @routes.get("/{letter_id}", response_model=DeadLetter, responses=UNKNOWN)
    async def get_dead_letter(request: Request, letter_id: Segment) -> Response:
        partition = _partition(letter_id, node)
        if partition is None:
            return _unknown(letter_id)
        if not node.serves(table, partition):
            return await peers.forward(request, node.owner(table, partition))
        row = node.read(table, partition, letter_id.encode())
        return _unknown(letter_id) if row is None else JSONResponse(letter_view(letter_id, row).model_dump())

    @routes.post("/{letter_id}/retry", status_code=202, response_model=Wish, responses=UNKNOWN)
    async def retry(letter_id: Segment) -> Response:
        """Handle the parked records in order, up to the first that fails again."""
        return await _wish("retry", letter_id)

    @routes.post("/{letter_id}/discard", status_code=202, response_model=Wish, responses=UNKNOWN | NOT_DISCARDABLE)
    async def discard(letter_id: Segment, body: Discard) -> Response:
        """Drop the first record for good; a retry handles the records behind it."""
        if node.topology.needs_every_record(processor_of_id(letter_id)):
            detail = "an event can't be left out of a history: fix `evolve` and retry"
            return problem(409, "history.whole", detail)
        return await _wish("discard", letter_id, offset=body.offset, reason=body.reason)

    async def _wish(action: Literal["retry", "discard"], letter_id: str, **fields: Any) -> Response:
        partition = _partition(letter_id, node)
        if partition is None:
            return _unknown(letter_id)
        wish = Wish(action=action, id=letter_id, **fields)
        await node.append(parking, *wish.record, partition)
        headers = {"Location": f"/dead-letters/{quote(wish.id, safe='')}"}
        return JSONResponse(wish.model_dump(), 202, headers=headers)

    return routes


def _partition(letter_id: str, node: Node) -> int | None:
    try:
        partition = partition_of_id(letter_id)
    except ValueError:
        return None
    return partition if partition < node.topology.partitions else None


def _unknown(letter_id: str) -> Response:
    return problem(404, "not_found", f"nothing is parked under {letter_id!r}")
