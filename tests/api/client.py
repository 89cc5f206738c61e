"""Sends requests exactly as written: a client library would correct paths, headers and bodies."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.waiting import eventually

TIMEOUT_S = 60.0
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's answer. `headers` are keyed by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The stable code of a problem+json; None for any other answer."""
        if self.headers.get("content-type") != "application/problem+json":
            return None
        return str(self.json["code"])


class Client:
    """Asks one worker, with a new connection for each request."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._address = url.removeprefix("http://")

    def get(self, path: str, **headers: str) -> Answer:
        """Asked again while it is 503: a worker waits 3 s for the owner, which may be busy."""
        return eventually(lambda: self.ask("GET", path, None, _spelled(headers)), lambda answer: answer.status != 503)

    def post(self, path: str, body: object = None, **headers: str) -> Answer:
        """`body` is sent as JSON; bytes are sent unchanged."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path, content, JSON | _spelled(headers))

    def ask(self, method: str, path: str, body: bytes | Iterable[bytes] | None, headers: Mapping[str, str]) -> Answer:
        """An iterable body is sent in chunks, without a Content-Length."""
        connection = http.client.HTTPConnection(self._address, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()


def _spelled(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
