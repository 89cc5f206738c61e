"""A partner who is told by webhooks, in this process."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer

from shared.effects.webhook import signature
from tests.effects.receiver import SECRET


class Partner(HTTPServer):
    """calls: the key and the body of each."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Called)
        self.calls: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class _Called(BaseHTTPRequestHandler):
    server: Partner

    def do_POST(self) -> None:
        body, id_ = self.rfile.read(int(self.headers["Content-Length"])).decode(), self.headers["webhook-id"]
        signed = signature(SECRET, id_, int(self.headers["webhook-timestamp"]), body)
        self.send_response(204 if signed == self.headers["webhook-signature"] else 401)
        self.end_headers()
        self.server.calls.append((id_, body))

    def log_message(self, *_: object) -> None:
        pass
