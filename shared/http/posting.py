"""The route of a command, cheaper than FastAPI's where a request is as most are."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.utils import get_validation_alias
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from shared.domain.message import Command
from shared.http.commands import DEFAULT_WAIT_S, IdempotencyKey, headers_of
from shared.http.routing import path_args_of

_USUAL = b"idempotency-key"
_checked_key = TypeAdapter[str](IdempotencyKey).validate_python


def posting(command: type[Command]) -> Callable[..., APIRoute]:
    """The class of its route, of which the function takes request, key, headers and, if there are fields, body."""
    return partial(_CommandRoute, command=command)


class _CommandRoute(APIRoute):
    """Reads JSON without headers that are seldom sent. All else, and all that is refused, FastAPI reads."""

    def __init__(self, *args: Any, command: type[Command], **kwargs: Any) -> None:
        self._validated = command.__pydantic_validator__.validate_python
        self._takes_body = bool(command.model_fields)
        super().__init__(*args, **kwargs)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        by_fastapi, self._path_args = super().get_route_handler(), path_args_of(self.dependant)
        headers = [field for each in self.dependant.dependencies for field in each.header_params]
        self._seldom = {get_validation_alias(field).lower().encode() for field in headers} - {_USUAL}

        async def answer(request: Request) -> Response:
            given = await self._given(request)
            response: Response = await (by_fastapi(request) if given is None else self.endpoint(**given))
            return response

        return answer

    async def _given(self, request: Request) -> dict[str, Any] | None:
        sent = dict(request.scope["headers"])
        if len(sent) < len(request.scope["headers"]) or not self._seldom.isdisjoint(sent):
            return None
        if self._takes_body and sent.get(b"content-type") != b"application/json":
            return None
        try:
            path = self._path_args(request)
            body = {"body": self._validated(json.loads(await request.body()))} if self._takes_body else {}
            key = sent.get(_USUAL)
            headers = headers_of(
                None if key is None else _checked_key(key.decode("latin-1")), None, None, DEFAULT_WAIT_S
            )
        except (RequestValidationError, ValueError, RecursionError):  # pydantic's is a ValueError
            return None
        return {"request": request, **path, "headers": headers, **body}
