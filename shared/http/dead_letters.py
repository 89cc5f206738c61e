"""Dead letters over HTTP: which records are parked and why, and what an operator has done with them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from shared.domain.envelope import CommandEnvelope, encode
from shared.domain.history_index import LogBegins
from shared.domain.row import Outcome, Row
from shared.domain.step import fingerprint
from shared.http.auth import caller_of
from shared.http.commands import OUTCOME_RESPONSES, Preferences, preferred_wait_s, refused
from shared.http.corrections import Corrections, check_contents, may_see_contents
from shared.http.lists import RESPONSES, ListQuery, Lists, Page
from shared.http.node import Node
from shared.http.paths import Segment
from shared.http.peers import Peers
from shared.http.problems import Problem, problem
from shared.parking.parked import OperatorRequest, Parked, partition_of_id, processor_of_id

UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "Nothing is parked under this id"}}
NOT_DISCARDABLE: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "An event can't be left out of a history"}
}
REMOVED: dict[int | str, dict[str, Any]] = {410: {"model": Problem, "description": "Retention has removed the record"}}
NOT_CORRECTED: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "It was refused, or can't be corrected; `code` says why"}
}


class DeadLetter(BaseModel):
    """A parked key. offset, code, reason, attempts: of its first record; behind: how many records wait behind it.

    reason: of a bug only its type, unless the caller may see contents of records.
    """

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

    data: JSON, as it is written there, of what a correction replaces; null unless the record is a command of this
    service, of a type and a version that this release knows.
    """

    topic: str
    partition: int
    offset: int
    value: str | None
    data: str | None


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
    """data: what the command should have said, in the version of the schema that it names."""

    data: dict[str, Any]


class Corrected(BaseModel):
    """command_id: of the command, as it was. sequence: the aggregate's after it; null while it is not decided yet."""

    command_id: str
    sequence: int | None


LATER: dict[int | str, dict[str, Any]] = {202: {"model": Corrected, "description": "Asked for, and not decided yet"}}


def letter_view(key: str, row: Row[Parked]) -> DeadLetter:
    parked = row.state
    return DeadLetter(id=key, **parked.model_dump(exclude={"behind", "pages", "paged"}), behind=parked.waiting)


def without_contents(key: str, row: Row[Parked]) -> DeadLetter:
    return letter_view(key, row).model_copy(update={"reason": row.state.reason_without_contents})


def router(node: Node, peers: Peers) -> APIRouter:
    routes = APIRouter(prefix="/dead-letters", tags=["operations"])
    table, parking = node.topology.parked, node.topology.parking
    service, corrections = node.topology.service, Corrections(node)
    whole, cut = (Lists(node, peers, table, view, ListQuery) for view in (letter_view, without_contents))

    @routes.get("", response_model=Page, responses=RESPONSES)
    async def list_dead_letters(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
        """Everything parked in this service."""
        listed = whole if may_see_contents(request, service) else cut
        return await listed.page(request, query)

    @routes.get("/{letter_id}", response_model=DeadLetter, responses=UNKNOWN)
    async def get_dead_letter(request: Request, letter_id: Segment) -> Response:
        row = await found(request, letter_id)
        if isinstance(row, Response):
            return row
        view = letter_view if may_see_contents(request, service) else without_contents
        return JSONResponse(view(letter_id, row).model_dump())

    @routes.get("/{letter_id}/record", response_model=ParkedRecord, responses=UNKNOWN | REMOVED)
    async def get_record(request: Request, letter_id: Segment) -> Response:
        """As it lies in the log; personal text is encrypted there.

        It needs the scopes `:read` and `:any` of this service, also for another's event, which this one reads.
        """
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
        shown = ParkedRecord(**place, value=_text(value), data=command and bytes(command.data).decode())
        return JSONResponse(shown.model_dump())

    @routes.post("/{letter_id}/retry", status_code=202, response_model=OperatorRequest, responses=UNKNOWN)
    async def retry(request: Request, letter_id: Segment, body: Retry | None = None) -> Response:
        """Handle the parked records in order, up to the first that fails again."""
        return await _ask(request, "retry", letter_id, body or Retry())

    @routes.post(
        "/{letter_id}/discard", status_code=202, response_model=OperatorRequest, responses=UNKNOWN | NOT_DISCARDABLE
    )
    async def discard(request: Request, letter_id: Segment, body: Discard) -> Response:
        """Drop the first record for good; a retry handles the records behind it."""
        if node.topology.needs_every_record(processor_of_id(letter_id)):
            detail = "an event can't be left out of a history: fix `evolve` and retry"
            return problem(409, "history.whole", detail)
        return await _ask(request, "discard", letter_id, body, offset=body.offset)

    @routes.post(
        "/{letter_id}/correct",
        status_code=201,
        response_model=Corrected,
        responses=OUTCOME_RESPONSES | LATER | UNKNOWN | REMOVED | NOT_CORRECTED,
    )
    async def correct(request: Request, letter_id: Segment, body: Correction, prefer: Preferences = ()) -> Response:
        """Have the first record, a command, decided with these data in its place, and then those behind it.

        It is the same command: whatever is retried or sent again beside it, it takes effect once. Once it is decided,
        it is not parked any more, also if it was refused. It also needs the service's scopes `:write` and `:any`.
        """
        check_contents(request, service, "write")
        wait_s = preferred_wait_s(prefer)
        row = await found(request, letter_id, wait_s)
        if isinstance(row, Response):
            return row
        if row.state.offset != body.offset:
            return problem(409, "letter.moved", f"the first record is the one at {row.state.offset} by now")
        try:
            parked = corrections.command_in(row.state, await corrections.value(row.state))
        except LogBegins:
            return _removed(row.state)
        if parked is None:
            detail = f"{row.state.topic} has no command there that this release of {service} can decide with other data"
            return problem(409, "letter.no_command", detail)
        command = await corrections.corrected(parked, body.data)
        decided = node.expect(command.aggregate_id, command.command_id, node.partition(command.aggregate_id.encode()))
        try:
            await _ask(request, "correct", letter_id, body, body.offset, encode(command).decode())
            outcome, _ = await asyncio.wait_for(decided, wait_s)
        except TimeoutError:
            return _corrected(command, None)
        finally:
            decided.cancel()
        return _corrected(command, outcome)

    async def found(request: Request, letter_id: str, wait_s: float = 0.0) -> Row[Parked] | Response:
        """What is parked, or the answer that says why it is not here."""
        partition = _partition(letter_id, node)
        if partition is None:
            return _unknown(letter_id)
        if not node.serves(table, partition):
            return await peers.forward(request, node.owner(table, partition), wait_s)
        return node.read(table, partition, letter_id.encode()) or _unknown(letter_id)

    async def _ask(
        request: Request,
        action: Literal["retry", "discard", "correct"],
        letter_id: str,
        asked: Retry,
        offset: int | None = None,
        value: str | None = None,
    ) -> Response:
        partition = _partition(letter_id, node)
        if partition is None:
            return _unknown(letter_id)
        caller = caller_of(request)
        by = asked.by if caller is None else caller.subject
        operator_request = OperatorRequest(
            action=action, id=letter_id, offset=offset, reason=asked.reason, by=by, value=value
        )
        await node.append(parking, *operator_request.record, partition)
        headers = {"Location": f"/dead-letters/{quote(operator_request.id, safe='')}"}
        return JSONResponse(operator_request.model_dump(exclude={"value"}), 202, headers=headers)

    return routes


def _corrected(command: CommandEnvelope[Any], outcome: Outcome | None) -> Response:
    """The answer once the command, or another with its id, has that outcome."""
    is_its = outcome is not None and outcome.is_of(fingerprint(command.data, command.expected_sequence))
    if outcome is None or (outcome.failed and not is_its):  # a repeat was told that the parked one had failed
        return JSONResponse(Corrected(command_id=command.command_id, sequence=None).model_dump(), 202)
    if not is_its:
        by = "a retry, a repeat by its sender, or another correction"
        return problem(409, "letter.decided", f"{command.command_id} was decided with other data: by {by}")
    if outcome.code is not None:
        return refused(outcome.code, outcome)
    return JSONResponse(Corrected(command_id=command.command_id, sequence=outcome.sequence).model_dump(), 201)


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


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
