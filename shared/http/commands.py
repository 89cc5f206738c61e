"""A command over HTTP: appended to the commands topic, answered once the transaction that decides it has committed."""
# No `from __future__ import annotations`: FastAPI reads the annotations of the nested function below.

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from secrets import token_hex
from typing import Annotated, Any, NamedTuple, Protocol, cast
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, HTTPException, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, Field

from shared.domain.decider import Decider
from shared.domain.envelope import CommandEnvelope
from shared.domain.errors import BadMessage, NotReady, SequenceMismatch
from shared.domain.ids import DOT_SEGMENTS, AggregateId, callers_id, check_aggregate_id, reference
from shared.domain.message import Command
from shared.domain.outcomes import Get, recalled
from shared.domain.personal import personal_fields
from shared.domain.row import Outcome, Row
from shared.domain.step import fingerprint
from shared.domain.times import CLOCKS_DIFFER
from shared.http.auth import OwnRows, caller_of, own_rows
from shared.http.metrics import CORRELATION_ID
from shared.http.node import Node
from shared.http.paths import LEGAL_ID, UNESCAPED, Segment
from shared.http.peers import Peers
from shared.http.problems import Problem, not_valid, problem
from shared.http.refusals import Forbidden
from shared.http.versions import acting_elsewhere, owner_in
from shared.http.waiting import MAX_WAIT_S, while_connected
from shared.privacy.persons import Forgotten, check_person_keys
from shared.privacy.sealing import sealer
from shared.runtime.clock import brokers_clock
from shared.runtime.positions import Committed, Place, format_positions
from shared.runtime.traces import SERVER, Span, link_to, span_id, trace_id
from shared.runtime.tracing import Tracing
from shared.topology.topics import Table, outcomes_of

DEFAULT_WAIT_S = 10.0
HAD_NO_EFFECT = (
    "a bug on our side: the command has had no effect. It is kept, and may be handled once the bug is fixed; GET the "
    "Location, or use the same Idempotency-Key, to learn of it"
)

_PREFERENCE = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*"?)+')  # a quoted string may hold commas


def _no_dot_segment(key: str) -> str:
    if key in DOT_SEGMENTS:
        raise ValueError(f"cannot be {key!r}: clients would remove it from the Location")
    return key


_IF_MATCH = r'^(?:W/)?"(0|[1-9][0-9]{0,17})(?:-[0-9a-f]{8})?"$'
"""Of an ETag the sequence counts alone: the rest tells views of one state apart. So it may be weak, as from a proxy."""

IdempotencyKey = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$"), AfterValidator(_no_dot_segment)]


def _iso_8601(sent: object) -> object:
    # pydantic takes a number for seconds, or milliseconds, after 1970
    if not isinstance(sent, str) or re.match("[0-9]{4}-", sent) is None:
        raise ValueError("must be ISO 8601, such as 2026-11-20T10:00:00Z")
    return sent


def _in_utc(instant: datetime) -> datetime:
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise ValueError("an instant must be in the years 1 to 9999 of UTC") from None


def _now() -> datetime:
    return datetime.fromtimestamp(brokers_clock.now(), UTC)


def _now_ns() -> int:
    return int(brokers_clock.now() * 1e9)


def _not_in_future(instant: datetime) -> datetime:
    """Such an event would be the end of the past as of a time, and of insights, for ever."""
    now = _now()
    if instant > now + CLOCKS_DIFFER:
        raise ValueError(f"is in the future: now is {now:%Y-%m-%dT%H:%M:%SZ} by the brokers' clock")
    return instant


Past = Annotated[AwareDatetime, BeforeValidator(_iso_8601), AfterValidator(_in_utc), AfterValidator(_not_in_future)]
Preferences = Annotated[Sequence[str], Header(description="respond-async, or wait=SECONDS (RFC 7240)")]


class Accepted(BaseModel):
    """The outcome of a command. command_id: as asked, so that of callers is their Idempotency-Key.

    sequence: the aggregate's after it; null while it is not decided yet.
    """

    command_id: str
    sequence: int | None


class At(NamedTuple):
    """Of a command, what is told in headers: where its outcome is, up to where was read and written, and by whom."""

    location: str
    position: str
    partition: int
    owner: str

    def headers(self) -> dict[str, str]:
        return {
            "Location": self.location,
            "Onefold-Position": self.position,
            "Onefold-Partition": str(self.partition),
            "Onefold-Owner": self.owner,
        }


class Took(NamedTuple):
    """The answer to a command that took effect, or is not decided yet: with many of them, no response is made."""

    status_code: int
    command_id: str
    sequence: int | None
    at: At

    def response(self) -> Response:
        body = Accepted(command_id=self.command_id, sequence=self.sequence).model_dump_json()
        return Response(body, self.status_code, headers=self.at.headers(), media_type="application/json")


Answer = Took | Response


class Asked(Protocol):
    """A command that was appended."""

    def done(self) -> bool:
        """Whether there is an answer, or a reason why there is none."""

    async def answer(self) -> Answer:
        """Waits for it."""

    def cancel(self) -> None:
        """Nobody waits any more."""


Asking = Callable[[], Asked]
"""Appends a command that may be taken."""


@dataclass(frozen=True, slots=True)
class CommandHeaders:
    """What the headers of a command ask for. wait_s: 0 when the caller prefers not to wait.

    expected_sequence: None when the command is for the aggregate at any.
    """

    key: str
    occurred_at: datetime
    expected_sequence: int | None
    wait_s: float


async def command_headers(
    idempotency_key: Annotated[
        IdempotencyKey | None, Header(description="takes effect once per key; without a key, a retry is a new command")
    ] = None,
    occurred_at: Annotated[Past | None, Header(description="when it happened, if not now")] = None,
    if_match: Annotated[
        str | None,
        Header(pattern=_IF_MATCH, description='an ETag, or "SEQUENCE": the command is for what is at that sequence'),
    ] = None,
    prefer: Preferences = (),
) -> CommandHeaders:
    return headers_of(idempotency_key, occurred_at, _sequence(if_match) if if_match else None, preferred_wait_s(prefer))


def headers_of(
    key: str | None, occurred_at: datetime | None, expected_sequence: int | None, wait_s: float
) -> CommandHeaders:
    """Of a command: without a key it gets one of its own, and without a time it happens now."""
    return CommandHeaders(
        key=key or _random_uuid(),
        occurred_at=occurred_at or _now(),
        expected_sequence=expected_sequence,
        wait_s=wait_s,
    )


def _random_uuid() -> str:
    """As uuid4 makes it, in a fifth of the time."""
    digits = token_hex(16)
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


def _sequence(if_match: str) -> int:
    found = re.match(_IF_MATCH, if_match)
    assert found is not None, "FastAPI has checked it"
    return int(found[1])


def preferred_wait_s(prefer: Sequence[str]) -> float:
    """prefer: the header's lines, which mean the same as one line with commas."""
    preferences = [each.partition(";")[0].strip().lower() for each in _PREFERENCE.findall(",".join(prefer))]
    if "respond-async" in preferences:
        return 0.0
    waits = (re.fullmatch(r'wait *= *"?([0-9]+)"?', each) for each in preferences)
    return next((min(float(wait[1]), MAX_WAIT_S) for wait in waits if wait), DEFAULT_WAIT_S)


Headers = Annotated[CommandHeaders, Depends(command_headers)]

RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {"model": Accepted, "description": "Appended but not decided yet; GET its Location for the outcome"},
    409: {"model": Problem, "description": "Refused; `code` says why"},
    412: {"model": Problem, "description": "The aggregate is not at the sequence in If-Match, so it had no effect"},
    413: {"model": Problem, "description": "The body is too large"},
    422: {"model": Problem, "description": "Not a valid request"},
    500: {"model": Problem, "description": "A bug; with `command.failed` the command has had no effect"},
    503: {
        "model": Problem,
        "description": "Not ready; try again after Retry-After with the same Idempotency-Key",
    },
}

OUTCOME_RESPONSES: dict[int | str, dict[str, Any]] = {
    201: {"model": Accepted, "description": "It took effect"},
    404: {"model": Problem, "description": "Not decided yet, or too long ago"},
    409: {"model": Problem, "description": "It was refused; `code` says why"},
    412: {"model": Problem, "description": "It was refused: the aggregate was not at the sequence in If-Match"},
    500: {"model": Problem, "description": "It could not be handled, and has had no effect"},
}


def refused(code: str, outcome: Outcome, headers: Mapping[str, str] | None = None) -> Response:
    """The answer where the outcome has that code."""
    if outcome.failed:
        return problem(500, code, outcome.detail or HAD_NO_EFFECT, headers=headers)
    status = 412 if code == SequenceMismatch.code else 409
    return problem(status, code, outcome.detail or "", headers=headers)


def _check_said_once(request: Request) -> None:
    """FastAPI takes the first. Raises RequestValidationError."""
    for name in ("idempotency-key", "if-match", "occurred-at"):
        if len(request.headers.getlist(name)) > 1:
            raise not_valid("header", name, "is there twice; fix: send one of them")


def _id_of(request: Request, key: str) -> str:
    caller = caller_of(request)
    return callers_id(caller.subject if caller else "", key)


def _check_command(own: OwnRows | None, command: Command) -> None:
    """Raises Forbidden for a command in another's name."""
    if own is not None and hasattr(command, own.field) and not own.has(command):
        raise Forbidden("owner.other", f"{own.field} does not name the token's bearer")


def _check_row(own: OwnRows, command: Command, aggregate_id: str, row: Row[Any] | None) -> None:
    """Raises HTTPException 404 as if another's row did not exist, and Forbidden if its id is to begin a new one."""
    state = row.state if row else None
    if own.has(state):
        return
    if not own.has(command):
        raise HTTPException(HTTPStatus.NOT_FOUND, f"nothing has the id {aggregate_id!r}")
    if getattr(state, own.field, None) is not None:
        raise Forbidden("owner.other", "this id is in use by another owner")


@dataclass(frozen=True, slots=True)
class _Known:
    """Was decided before."""

    known: Response

    def done(self) -> bool:
        return True

    async def answer(self) -> Answer:
        return self.known

    def cancel(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Appended, and waits for its outcome until the deadline, by the loop's clock."""

    appended: asyncio.Future[tuple[int, int]]
    decided: asyncio.Future[Committed]
    deadline: float
    told: Callable[[int, Committed | None], Answer]
    """The answer to an offset and an outcome."""

    def done(self) -> bool:
        return self.appended.done() and (self.decided.done() or self.appended.exception() is not None)

    async def answer(self) -> Answer:
        try:
            _, offset = await self.appended
            return self.told(offset, await self._outcome())
        finally:
            self.decided.cancel()

    async def _outcome(self) -> Committed | None:
        """None if it is not decided in time."""
        left_s = self.deadline - asyncio.get_running_loop().time()
        try:
            return self.decided.result() if self.decided.done() else await asyncio.wait_for(self.decided, left_s)
        except TimeoutError:
            return None

    def cancel(self) -> None:
        self.appended.cancel()
        self.decided.cancel()


@dataclass(frozen=True, slots=True)
class _Traced:
    """Tells a span of the request below the command's: its own would have no parent in its story."""

    asked: Asked
    tracing: Tracing
    span: Span

    def done(self) -> bool:
        return self.asked.done()

    async def answer(self) -> Answer:
        span = self.span
        try:
            answer = await self.asked.answer()
            told = {**span.attributes, "http.response.status_code": answer.status_code}
            span = span._replace(attributes=told, error=str(answer.status_code) if answer.status_code >= 500 else "")
            return answer
        finally:
            self._tell(span)

    def cancel(self) -> None:
        self.asked.cancel()
        self._tell(self.span)

    def _tell(self, span: Span) -> None:
        self.tracing.tell([span._replace(end_ns=_now_ns())])


class Commands:
    """Takes commands for aggregates of one kind; the worker that owns the key appends and answers."""

    def __init__(self, node: Node, peers: Peers, decider: Decider[Any, Any, Any], table: Table, path: str) -> None:
        """path: the aggregates' collection, such as `/accounts`."""
        self._node = node
        self._path = path
        self._own_topics = {topic.name for topic in node.topology.topics}
        self._texts: tuple[Mapping[Place, int], dict[int, tuple[str, str]]] = {}, {}
        self._peers = peers
        self._codec = decider.command_codec
        self._table = table
        self._outcomes = node.topology.outcomes or outcomes_of(table)
        self._sealer = sealer(node.settings)
        types: Sequence[type[Command]] = decider.commands
        if any(map(personal_fields, types)):
            check_person_keys(node.settings)

    async def submit(self, request: Request, aggregate_id: str, command: Command, headers: CommandHeaders) -> Response:
        """201 with the new sequence, 409 or 412 when refused, 500 when it met a bug, 202 when not decided in time."""
        _check_said_once(request)
        request.scope[CORRELATION_ID] = headers.key
        own, owner = own_rows(request), self.owner(check_aggregate_id(aggregate_id))
        _check_command(own, command)
        if owner != self.url:
            return await while_connected(request, self._peers.forward(request, owner, headers.wait_s))
        ask = await self.begin(request, own, aggregate_id, command, headers)
        answer = await ask().answer()
        return answer.response() if isinstance(answer, Took) else answer

    @property
    def url(self) -> str:
        return self._node.settings.url

    def owner(self, aggregate_id: str) -> str | None:
        """URL of the worker that decides; None while none does."""
        return self.owner_of(self.partition(aggregate_id))

    def partition(self, aggregate_id: str) -> int:
        return self._node.partition(aggregate_id.encode())

    def owner_of(self, partition: int) -> str | None:
        if (version := acting_elsewhere(self._node, partition)) is not None:
            return owner_in(self._node.routes, version, partition)
        return self.url if self._serves(partition) else self._node.owner(self._table, partition)

    async def begin(
        self, request: Request, own: OwnRows | None, aggregate_id: str, command: Command, headers: CommandHeaders
    ) -> Asking:
        """What appends it.

        Raises what the command is refused for before it is in the log, and NotReady if this worker is not the owner.
        """
        tracing = self._node.tracing
        begin_ns = 0 if tracing is None else _now_ns()
        key = aggregate_id.encode()
        partition = self._node.partition(key)
        if not self._serves(partition) or acting_elsewhere(self._node, partition) is not None:
            raise NotReady("the owner of this key is moving")
        _check_command(own, command)
        if own is not None:
            _check_row(own, command, aggregate_id, self._node.read(self._table, partition, key))
        try:
            sealed = await self._sealed(command, aggregate_id)
        except Forgotten as forgotten:
            return partial(_Known, self._forgotten(request, forgotten, aggregate_id, partition, headers.key))
        envelope = self._codec.wrap(
            sealed,
            command_id=_id_of(request, headers.key),
            aggregate_id=aggregate_id,
            issued_at=headers.occurred_at,
            correlation_id=headers.key,
            expected_sequence=headers.expected_sequence,
        )
        asking = partial(self._append, envelope, partition, headers, *self._checked(envelope))
        if tracing is None or not tracing.takes(envelope.correlation_id):
            return asking
        return partial(self._append_traced, tracing, self._span(request, envelope, begin_ns, tracing.worker), asking)

    def _append(
        self, envelope: CommandEnvelope[Any], partition: int, headers: CommandHeaders, value: bytes, digest: str
    ) -> Asked:
        """value: its record."""
        aggregate_id = envelope.aggregate_id
        decided = self._node.expect(aggregate_id, envelope.command_id, partition)
        try:
            appended = self._node.append(self._table.source, aggregate_id.encode(), value, partition)
        except Exception:
            decided.cancel()
            raise
        return _Waiting(
            asyncio.ensure_future(appended),
            decided,
            asyncio.get_running_loop().time() + headers.wait_s,
            partial(self._told, aggregate_id, headers.key, partition, digest),
        )

    def _told(
        self, aggregate_id: str, key: str, partition: int, digest: str, offset: int, committed: Committed | None
    ) -> Answer:
        """The answer to a command that was appended at this offset. committed: None if it is not decided in time."""
        outcome, positions = committed or (None, {})
        at = self._at(aggregate_id, key, partition, self._seen(positions, partition, offset))
        return Took(202, key, None, at) if outcome is None else self._outcome(outcome, digest, key, at)

    def _append_traced(self, tracing: Tracing, span: Span, asking: Asking) -> Asked:
        return _Traced(asking(), tracing, span)

    def _span(self, request: Request, envelope: CommandEnvelope[Any], begin_ns: int, worker: str) -> Span:
        attributes = {"http.request.method": request.method, "http.route": request.scope["route"].path}
        return Span(
            service=self._node.topology.service,
            trace=trace_id(envelope.correlation_id),
            id=token_hex(8),  # of what is not in the log, and never told again
            parent=span_id(envelope.command_id),
            name=" ".join(attributes.values()),
            kind=SERVER,
            begin_ns=begin_ns,
            end_ns=begin_ns,
            attributes=attributes,
            error="not answered",
            link=link_to(request.headers.get("traceparent")),
            worker=worker,
        )

    def _serves(self, partition: int) -> bool:
        return all(self._node.serves(table, partition) for table in (self._table, self._outcomes))

    async def _sealed(self, command: Command, aggregate_id: str) -> Command:
        """The command without readable personal fields. Raises Forgotten, NotReady and RequestValidationError."""
        try:
            return await self._sealer.sealed(command, reference(self._node.topology.service, aggregate_id))
        except ValueError as error:
            raise RequestValidationError([{"loc": ("body",), "msg": str(error), "type": "value_error"}]) from None

    def _forgotten(self, request: Request, error: Forgotten, aggregate_id: str, partition: int, key: str) -> Response:
        """Raises the error again for a command that was not decided before."""
        row = self._node.read(self._table, partition, aggregate_id.encode())
        if self._known(request, row, aggregate_id, partition, key) is None:
            raise error
        detail = f"{error}; a command with this Idempotency-Key was decided before: its outcome is at the Location"
        at = self._at_row(aggregate_id, key, partition, row)
        return problem(409, "person.forgotten", detail, headers=at.headers())

    def _checked(self, envelope: CommandEnvelope[Any]) -> tuple[bytes, str]:
        """The record's value, and the fingerprint that its readers will find. Raises RequestValidationError.

        FastAPI takes what JSON can't hold: half a surrogate pair, NaN in an inner model, or 250 levels.
        """
        try:
            value = self._codec.encode(envelope)
            read = self._codec.decode(value)
            return value, fingerprint(read.data, read.expected_sequence)
        except (BadMessage, ValueError, RecursionError) as error:
            message = f"no reader can take it as JSON: {error}"
            raise RequestValidationError([{"loc": ("body",), "msg": message, "type": "json_invalid"}]) from None

    def add_outcome_route(self, router: APIRouter, id_in: str) -> None:
        """To the aggregates' router, the route that `Location` names. id_in: the path parameter with the id."""

        @router.get(
            f"/{{{id_in}}}/commands/{{command_id}}",
            status_code=201,
            response_model=Accepted,
            responses=OUTCOME_RESPONSES,
        )
        async def get_outcome(
            request: Request,
            aggregate_id: Annotated[AggregateId, UNESCAPED, Path(alias=id_in, description=LEGAL_ID)],
            command_id: Segment,
        ) -> Response:
            return await self._decided(request, aggregate_id, command_id)

    def _known(
        self, request: Request, row: Row[Any] | None, aggregate_id: str, partition: int, asked: str
    ) -> Outcome | None:
        """Of the caller's own command with this key; else of any with this id, as operators find it in events.

        row: None if the aggregate has none, which may have ended since.
        """
        own = own_rows(request)
        ids = [_id_of(request, asked), *([asked] if own is None or (row and own.has(row.state)) else [])]
        get = cast(Get, partial(self._node.read, self._outcomes, partition))
        found = (recalled(get, aggregate_id, each) or (row.outcome(each) if row else None) for each in ids)
        return next(filter(None, found), None)

    async def _decided(self, request: Request, aggregate_id: str, command_id: str) -> Response:
        """The outcome of a command: 201, 409, 412, 500; 404 when it is not, or no longer, known."""
        key = check_aggregate_id(aggregate_id).encode()
        partition = self._node.partition(key)
        if (owner := self.owner_of(partition)) != self.url:
            return await self._peers.forward(request, owner)
        row = self._node.read(self._table, partition, key)
        outcome = self._known(request, row, aggregate_id, partition, command_id)
        if outcome is None:
            detail = f"command {command_id} is not decided yet, or was decided too long ago"
            return problem(404, "command.unknown", detail)
        at = self._at_row(aggregate_id, command_id, partition, row)
        answer = self._outcome(outcome, outcome.fingerprint, command_id, at)
        return answer.response() if isinstance(answer, Took) else answer

    @staticmethod
    def _outcome(outcome: Outcome, expected: str, command_id: str, at: At) -> Answer:
        if not outcome.is_of(expected):
            return problem(
                409,
                "idempotency_key.reused",
                "this Idempotency-Key was used with another body or If-Match before; that was decided, this was not",
                headers=at.headers(),
            )
        if outcome.code is not None:
            return refused(outcome.code, outcome, at.headers())
        return Took(201, command_id, outcome.sequence, at)

    def _at_row(self, aggregate_id: str, command_id: str, partition: int, row: Row[Any] | None) -> At:
        offset = row.offset if row else self._node.position(self._table, partition)
        commands = Place(self._table.source.name, partition)
        seen = format_positions({**self._own(self._node.event_offsets(partition), partition), commands: offset})
        return self._at(aggregate_id, command_id, partition, seen)

    def _at(self, aggregate_id: str, command_id: str, partition: int, position: str) -> At:
        location = f"{self._path}/{_quoted(aggregate_id)}/commands/{_quoted(command_id)}"
        return At(location, position, partition, self._node.settings.url)

    def _seen(self, positions: Mapping[Place, int], partition: int, offset: int) -> str:
        """As text, the positions of the service's topics in the partition, with this one of the commands."""
        of, texts = self._texts
        if of is not positions:  # those of a transaction, which are the same for all of its commands
            texts = {}
            self._texts = positions, texts
        if (text := texts.get(partition)) is None:
            commands = Place(self._table.source.name, partition)
            all_of_it = format_positions({**self._own(positions, partition), commands: -1})
            before, _, after = all_of_it.partition(f"{commands}@-1")
            text = texts[partition] = f"{before}{commands}@", after
        return f"{text[0]}{offset}{text[1]}"

    def _own(self, positions: Mapping[Place, int], partition: int) -> dict[Place, int]:
        places = [Place(topic, partition) for topic in self._own_topics]
        return {place: positions[place] for place in places if place in positions}


def _quoted(text: str) -> str:
    """As in a path; most ids are as they are."""
    return text if text.isascii() and text.replace("-", "").isalnum() else quote(text, safe="")
