"""Many commands in one request, one a line (NDJSON): each is taken, decided and answered as if it were posted alone."""

# No `from __future__ import annotations`: FastAPI reads the annotations of the nested function below.

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache, reduce
from itertools import islice
from operator import or_
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from msgspec import Struct
from msgspec.json import Decoder
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import to_json
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from shared.domain.errors import NotReady
from shared.domain.ids import AggregateId, check_aggregate_id
from shared.domain.message import Command
from shared.http.auth import OwnRows, own_rows
from shared.http.commands import (
    Accepted,
    Answer,
    Asked,
    Asking,
    Commands,
    IdempotencyKey,
    Past,
    Preferences,
    Took,
    headers_of,
    preferred_wait_s,
)
from shared.http.limits import owe
from shared.http.peers import LINES, Peers, is_hop
from shared.http.problems import Problem, answer_to, not_ready, not_valid, problem
from shared.http.refusals import Forbidden
from shared.privacy.sealing import has_personal_text

MAX_LINES = 5_000
IN_FLIGHT = 1_000  # commands of one request that wait to be decided here; more are begun as answers are taken
MAX_IN_FLIGHT = (
    16_000  # of all requests that clients send here, half of it for one client: some 100 MB while nothing is decided
)
AT_ONCE = 20  # commands that are being begun; after as many, others have a turn

_OF_A_LINE = {"idempotency-key": "idempotency_key", "if-match": "if_match", "occurred-at": "occurred_at"}
_TOLD = {b"location": "location", b"onefold-position": "position", b"retry-after": "retry_after"}


class CommandLine(BaseModel):
    """A command. body: as when it is posted alone. if_match: a sequence; the rest is as in headers of these names."""

    model_config = ConfigDict(extra="forbid")

    type: str
    id: AggregateId
    body: Any = None
    idempotency_key: IdempotencyKey | None = None
    if_match: Annotated[int, Field(strict=True, ge=0, lt=10**18)] | None = None
    occurred_at: Past | None = None


class AnsweredLine(BaseModel):
    """What a command posted alone is answered: its status, the fields of its body, and of its headers these."""

    status: int
    location: str | None = None
    position: str | None = None
    retry_after: str | None = None


class Ndjson(StreamingResponse):
    media_type = LINES

    turn: AbstractContextManager[Any] = nullcontext()
    """Left once the answer has ended."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.turn:
            await super().__call__(scope, receive, send)


class NdjsonRoute(APIRoute):
    """A route for bodies of lines; any other is for the aggregate whose id is the last segment of the path.

    Such as text/plain, which a page in a browser may send anywhere, is never taken for lines.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        sent = dict(scope["headers"]).get(b"content-type", b"").partition(b";")[0]
        return super().matches(scope) if sent.strip().lower() == LINES.encode() else (Match.NONE, {})


class _Addressed(Struct):
    id: str


_address = Decoder(_Addressed).decode


def _id_in(line: bytes) -> str | None:
    """None if it can't be read."""
    try:
        return check_aggregate_id(_address(line).id)
    except (ValueError, RecursionError):
        return None


class Lines:
    """Answers requests with commands of these types."""

    def __init__(self, intake: Commands, peers: Peers, types: Sequence[type[Command]], *, owned_by_id: bool) -> None:
        """owned_by_id: whether an aggregate's id names its owner."""
        self._intake = intake
        self._peers = peers
        self._owned_by_id = owned_by_id
        lines = [_line_of(each) for each in types]
        one_of: Any = Annotated[reduce(or_, lines), Field(discriminator="type")] if len(lines) > 1 else lines[0]
        self._validate = TypeAdapter(one_of).validator.validate_json
        self._tags = {(each.TYPE,) for each in types}
        self._types = {each.TYPE: each for each in types}

    def add_route(self, router: APIRouter) -> None:
        """`POST …/commands`."""
        line, answered = CommandLine.model_json_schema(), AnsweredLine.model_json_schema()
        line["properties"]["type"]["enum"] = sorted(type_ for (type_,) in self._tags)
        answered["anyOf"] = [{"$ref": f"#/components/schemas/{each.__name__}"} for each in (Accepted, Problem)]

        async def send_commands(request: Request, prefer: Preferences = ()) -> Response:
            """One on each line, and for each a line of what it would be answered if it were posted alone."""
            return await self._answer(request, preferred_wait_s(prefer))

        router.add_api_route(
            "/commands",
            send_commands,
            methods=["POST"],
            response_class=Ndjson,
            responses={
                200: {"description": "A line for each, in their order", "content": {LINES: {"schema": answered}}}
            },
            openapi_extra={"requestBody": {"required": True, "content": {LINES: {"schema": line}}}},
            route_class_override=NdjsonRoute,
        )

    async def _answer(self, request: Request, wait_s: float) -> Response:
        """wait_s: for each command."""
        if alien := _OF_A_LINE.keys() & request.headers.keys():
            name = min(alien)
            raise not_valid("header", name, f"is of one command; fix: give each line its own {_OF_A_LINE[name]}")
        lines = [line for line in (await request.body()).split(b"\n") if line.strip()]
        if len(lines) > MAX_LINES:
            return problem(413, "request.too_large", f"{len(lines)} lines; fix: send at most {MAX_LINES} at once")
        with ExitStack() as turn:
            turn.enter_context(request.app.state.lines.turn(request, min(len(lines), IN_FLIGHT)))
            owe(request, len(lines[1:]))
            answer = Ndjson(self._answers(request, own_rows(request), lines, wait_s))
            answer.turn = turn.pop_all()
            return answer

    async def _answers(
        self, request: Request, own: OwnRows | None, lines: Sequence[bytes], wait_s: float
    ) -> AsyncGenerator[bytes]:
        """In the order of the lines, as many at a time as are there. Those of one owner are sent to it together."""
        owner_of = cache(self._intake.owner_of)  # until the next wait, nothing moves
        owners = [self._owner(request, line, owner_of) for line in lines]
        of_owner: Mapping[str | None, list[bytes]] = defaultdict(list)
        for owner, line in zip(owners, lines, strict=True):
            of_owner[owner].append(line)
        streams = {
            owner: self._here(request, own, some, wait_s)
            if owner == self._intake.url
            else self._there(request, owner, some, wait_s)
            for owner, some in of_owner.items()
        }
        coming = {owner: _next(stream) for owner, stream in streams.items()}
        come: Mapping[str | None, deque[bytes]] = defaultdict(deque)
        answers: list[bytes] = []
        try:
            for owner in owners:
                if not come[owner]:
                    yield b"".join(answers)
                    answers = []
                while not come[owner]:  # of the others, too, as none waits for another
                    await asyncio.wait(
                        [each for of, each in coming.items() if len(come[of]) < IN_FLIGHT],
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    for of in [of for of, each in coming.items() if each.done()]:
                        some = coming.pop(of).result()
                        if some is not None:
                            come[of].extend(some)
                            coming[of] = _next(streams[of])
                answers.append(come[owner].popleft())
            yield b"".join(answers)
        finally:
            for each in coming.values():
                each.cancel()
            await asyncio.gather(*coming.values(), return_exceptions=True)
            for stream in streams.values():
                await stream.aclose()

    def _owner(self, request: Request, line: bytes, owner_of: Callable[[int], str | None]) -> str | None:
        """URL of the worker that is to answer: this one for what it must not pass on, or can't read."""
        aggregate_id = None if is_hop(request) else _id_in(line)
        return self._intake.url if aggregate_id is None else owner_of(self._intake.partition(aggregate_id))

    async def _here(
        self, request: Request, own: OwnRows | None, lines: Sequence[bytes], wait_s: float
    ) -> AsyncGenerator[Sequence[bytes]]:
        """They are appended in their order. Those with a personal text, which takes a while, are begun some at once.

        Where a row tells whose it is, a line is begun once those for its row before it are answered.
        """
        rest, beginning, asked = deque(lines), deque[asyncio.Future[Asking]](), deque[Asked | Exception]()
        begun_ids, first = deque[str | None](), list[asyncio.Future[bytes]]()
        by_row = own is not None and not self._owned_by_id
        try:
            while rest or beginning or asked or first:
                begun = 0
                while rest and max(begun, len(beginning)) < AT_ONCE and len(begun_ids) < IN_FLIGHT:
                    aggregate_id = _id_in(rest[0]) if by_row else None
                    if aggregate_id is not None and aggregate_id in begun_ids:
                        break
                    begun_ids.append(aggregate_id)
                    begun += 1
                    sent = self._read(rest.popleft())
                    begin = self._begin(request, own, sent, wait_s)
                    if beginning or _has_personal_text(sent):
                        beginning.append(asyncio.ensure_future(begin))
                    else:
                        asked.append(await _appended(begin))
                if asked and not first:
                    first.append(asyncio.ensure_future(_answered(request, asked.popleft())))
                if begun:
                    await asyncio.sleep(0)  # others have a turn
                else:
                    await _first_of(*islice(beginning, 1), *first)
                while beginning and beginning[0].done():
                    asked.append(await _appended(beginning.popleft()))
                answers = [first.pop().result()] if first and first[0].done() else []
                while answers and asked and _is_done(asked[0]):
                    answers.append(await _answered(request, asked.popleft()))
                for _ in answers:
                    begun_ids.popleft()
                if answers:
                    yield answers
        finally:
            futures: list[asyncio.Future[Any]] = [*beginning, *first]
            for future in futures:
                future.cancel()
            for waiting in asked:
                if not isinstance(waiting, Exception):
                    waiting.cancel()

    async def _begin(
        self, request: Request, own: OwnRows | None, sent: CommandLine | Exception, wait_s: float
    ) -> Asking:
        if isinstance(sent, Exception):
            raise sent
        if request.app.state.closing.is_set():
            raise NotReady("this worker is being stopped")
        if own is not None and self._owned_by_id:
            if sent.id != own.owner:
                raise Forbidden("owner.other", "the token's bearer does not own this aggregate")
            own = None
        headers = headers_of(sent.idempotency_key, sent.occurred_at, sent.if_match, wait_s)
        command = self._types[sent.type]() if sent.body is None else sent.body
        return await self._intake.begin(request, own, sent.id, command, headers)

    def _read(self, line: bytes) -> CommandLine | RequestValidationError:
        """An error has the places of a command that is posted alone."""
        try:
            read: CommandLine = self._validate(line)
        except ValidationError as error:
            return RequestValidationError([self._placed(each) for each in error.errors(include_url=False)])
        return read

    def _placed(self, error: Any) -> dict[str, Any]:
        """Without the type of the line, by which pydantic has chosen."""
        place = error["loc"][1:] if error["loc"][:1] in self._tags else error["loc"]
        return {**error, "loc": place or ("line",)}

    async def _there(
        self, request: Request, owner: str | None, lines: Sequence[bytes], wait_s: float
    ) -> AsyncGenerator[Sequence[bytes]]:
        missing, reason = len(lines), f"the owner {owner} has not answered all"
        try:
            async for answers in self._peers.lines(request, owner, b"\n".join(lines), wait_s):
                missing -= len(answers)
                yield answers
        except NotReady as error:
            reason = str(error)
        yield [_as_line(request, not_ready(reason)) for _ in range(missing)]


def _next(answers: AsyncGenerator[Sequence[bytes]]) -> asyncio.Future[Sequence[bytes] | None]:
    """None: there are no more."""
    return asyncio.ensure_future(anext(answers, None))


def _line_of(command: type[Command]) -> type[CommandLine]:
    needed = any(each.is_required() for each in command.model_fields.values())
    body = (command, ...) if needed else (command | None, None)
    fields: dict[str, Any] = {"type": (Literal[command.TYPE], ...), "body": body}
    return create_model(f"{command.__name__}Line", __base__=CommandLine, **fields)


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _has_personal_text(sent: CommandLine | Exception) -> bool:
    return not isinstance(sent, Exception) and isinstance(sent.body, Command) and has_personal_text(sent.body)


async def _appended(begin: Awaitable[Asking]) -> Asked | Exception:
    """An exception is why it was not."""
    try:
        return (await begin)()
    except Exception as error:
        return error


def _is_done(asked: Asked | Exception) -> bool:
    return isinstance(asked, Exception) or asked.done()


async def _answered(request: Request, asked: Asked | Exception) -> bytes:
    try:
        if isinstance(asked, Exception):
            raise asked
        answer: Answer = await asked.answer()
    except Exception as error:
        answer = await answer_to(request, error)
    return _as_line(request, answer)


def _as_line(request: Request, answer: Answer) -> bytes:
    """Its body with some of its headers put before; a problem's has the status already. Counts it."""
    request.app.state.metrics.lines(request.scope["route"].path, answer.status_code).inc()
    if isinstance(answer, Took):
        place = f'"location":"{answer.at.location}","position":"{answer.at.position}"'  # of which nothing needs escapes
        id_, sequence = to_json(answer.command_id).decode(), to_json(answer.sequence).decode()
        return f'{{"status":{answer.status_code},{place},"command_id":{id_},"sequence":{sequence}}}\n'.encode()
    told: dict[str, Any] = {} if answer.status_code >= 400 else {"status": answer.status_code}
    told |= {_TOLD[name]: value.decode() for name, value in answer.raw_headers if name in _TOLD}
    before = b"%b," % to_json(told)[:-1] if told else b"{"
    return b"%b%b\n" % (before, bytes(answer.body)[1:])
