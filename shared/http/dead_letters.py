"""Dead letters over HTTP: which records are parked and why, and what an operator has done with them."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from shared.domain.chapters import LogBegins
from shared.domain.row import Row
from shared.http.auth import caller_of
from shared.http.corrections import Corrections, check_contents
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
REMOVED: dict[int | str, dict[str, Any]] = {410: {"model": Problem, "description": "Retention has removed the record"}}
NOT_CORRECTABLE: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "It is no command of this service, or another record is first by now"}
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


class ParkedRecord(BaseModel):
    """The first record of a parked key. value: null if it has none, or bytes that are no text.

    data: what a correction replaces; null unless the record can be read as a command of this service.
    """

    topic: str
    partition: int
    offset: int
    value: str | None
    data: Any


class Retry(BaseModel):
    """by: who asks; where there are tokens, they say it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: Annotated[str, Field(max_length=300)] = ""
    by: Annotated[str, Field(max_length=100)] = ""


class Discard(Retry):
    """offset: the one shown for the first record; if another record is first by now, nothing is dropped."""

    offset: int
    reason: Annotated[str, Field(min_length=1, max_length=300)]


class Correction(Discard):
    """data: of the new command, in the version of the schema in which the parked one was."""

    data: dict[str, Any]


class Corrected(BaseModel):
    """command_id: of the new command, whose outcome is at `…/commands/{command_id}` of its aggregate."""

    command_id: str


def letter_view(key: str, row: Row[Parked]) -> DeadLetter:
    parked = row.state
    return DeadLetter(id=key, **parked.model_dump(exclude={"behind", "pages", "paged"}), behind=parked.waiting)


def router(node: Node, peers: Peers) -> APIRouter:
    routes = APIRouter(prefix="/dead-letters", tags=["operations"])
    table, parking = node.topology.parked, node.topology.parking
    service, corrections = node.topology.service, Corrections(node)
    listed = Lists(node, peers, table, letter_view, ListQuery)

    @routes.get("", response_model=Page, responses=RESPONSES)
    async def list_dead_letters(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
        """Everything parked in this service."""
        return await listed.page(request, query)

    @routes.get("/{letter_id}", response_model=DeadLetter, responses=UNKNOWN)
    async def get_dead_letter(request: Request, letter_id: Segment) -> Response:
        row = await found(request, letter_id)
        return row if isinstance(row, Response) else JSONResponse(letter_view(letter_id, row).model_dump())

    @routes.get("/{letter_id}/record", response_model=ParkedRecord, responses=UNKNOWN | REMOVED)
    async def get_record(request: Request, letter_id: Segment) -> Response:
        """As it lies in the log; personal text is encrypted there. It needs the service's scopes `:read` and `:any`."""
        check_contents(request, service, "read")
        row = await found(request, letter_id)
        if isinstance(row, Response):
            return row
        try:
            value = await corrections.value(row.state)
        except LogBegins:
            return _removed(row.state)
        command = corrections.command_in(row.state, value)
        place = row.state.model_dump(include={"topic", "partition", "offset"})
        shown = ParkedRecord(**place, value=_text(value), data=command and command["data"])
        return JSONResponse(shown.model_dump())

    @routes.post("/{letter_id}/retry", status_code=202, response_model=Wish, responses=UNKNOWN)
    async def retry(request: Request, letter_id: Segment, body: Retry | None = None) -> Response:
        """Handle the parked records in order, up to the first that fails again."""
        return await _wish(request, "retry", letter_id, body or Retry())

    @routes.post("/{letter_id}/discard", status_code=202, response_model=Wish, responses=UNKNOWN | NOT_DISCARDABLE)
    async def discard(request: Request, letter_id: Segment, body: Discard) -> Response:
        """Drop the first record for good; a retry handles the records behind it."""
        if node.topology.needs_every_record(processor_of_id(letter_id)):
            detail = "an event can't be left out of a history: fix `evolve` and retry"
            return problem(409, "history.whole", detail)
        return await _wish(request, "discard", letter_id, body, offset=body.offset)

    @routes.post(
        "/{letter_id}/correct",
        status_code=202,
        response_model=Corrected,
        responses=UNKNOWN | REMOVED | NOT_CORRECTABLE,
    )
    async def correct(request: Request, letter_id: Segment, body: Correction) -> Response:
        """Send the first record, a command, as a new one with these data, in the same story, and drop it.

        Repeated, it is the same command. It also needs the service's scopes `:write` and `:any`.
        """
        check_contents(request, service, "write")
        row = await found(request, letter_id)
        if isinstance(row, Response):
            return row
        if row.state.offset != body.offset:
            return problem(409, "letter.moved", f"the first record is the one at {row.state.offset} by now")
        try:
            before = corrections.command_in(row.state, await corrections.value(row.state))
        except LogBegins:
            return _removed(row.state)
        if before is None:
            return problem(409, "letter.no_command", f"{row.state.topic} has no command of {service} there")
        command_id = await corrections.send(row.state, before, body.data)
        told = body.model_copy(update={"reason": f"corrected by the command {command_id}: {body.reason}"})
        await _wish(request, "discard", letter_id, told, offset=body.offset)
        return JSONResponse(Corrected(command_id=command_id).model_dump(), 202)

    async def found(request: Request, letter_id: str) -> Row[Parked] | Response:
        """What is parked, or the answer that says why it is not here."""
        partition = _partition(letter_id, node)
        if partition is None:
            return _unknown(letter_id)
        if not node.serves(table, partition):
            return await peers.forward(request, node.owner(table, partition))
        return node.read(table, partition, letter_id.encode()) or _unknown(letter_id)

    async def _wish(
        request: Request, action: Literal["retry", "discard"], letter_id: str, asked: Retry, offset: int | None = None
    ) -> Response:
        partition = _partition(letter_id, node)
        if partition is None:
            return _unknown(letter_id)
        caller = caller_of(request)
        by = asked.by if caller is None else caller.subject
        wish = Wish(action=action, id=letter_id, offset=offset, reason=asked.reason, by=by)
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


def _removed(parked: Parked) -> Response:
    place = f"{parked.topic}/{parked.partition} at {parked.offset}"
    return problem(410, "record.removed", f"retention has removed {place}; fix: `discard` it")


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
